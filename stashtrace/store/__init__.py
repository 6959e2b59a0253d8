"""A run as Parquet files, one partition per rank."""
