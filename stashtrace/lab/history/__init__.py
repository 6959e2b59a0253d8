"""Runs over time: one small Parquet file a run, and what many of them say of hosts, commits, neighbours and cost."""
