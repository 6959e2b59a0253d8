"""Try settings on a job one at a time, and keep those that the statistics of `check` call better with equal results."""
