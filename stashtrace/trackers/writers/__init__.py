"""One file for each tracker, which is imported when it is written to."""
