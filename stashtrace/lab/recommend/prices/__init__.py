"""Instance catalogs: TOML files alone, one per provider, read by ``lab.recommend.catalog``. No code lives here."""

# SPDX-License-Identifier: Apache-2.0
