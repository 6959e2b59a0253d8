"""Instance catalogs: TOML files alone, one per provider, read by ``models.catalog``. No code lives here."""

# SPDX-License-Identifier: Apache-2.0
