"""Runs over time: one small Parquet file a run, and what many of them tell of hosts, commits, neighbours and cost."""
