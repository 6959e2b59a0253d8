"""Decoders, which turn the rows that one collector wrote into event tables. One file per collector, by its name."""
