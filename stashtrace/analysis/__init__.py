"""Analyses, which take a Trace and return a Table: one folder per question, one line in ``registry.ANALYSES`` each."""
