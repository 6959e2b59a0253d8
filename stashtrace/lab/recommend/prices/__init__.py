"""Instance catalogs: TOML files alone, one per provider, read by ``lab.recommend.instance_catalog``."""
