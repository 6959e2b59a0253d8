"""Step time against the cached share of the data."""
