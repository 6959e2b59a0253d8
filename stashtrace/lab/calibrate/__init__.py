"""Measure what the links of a machine can do."""
