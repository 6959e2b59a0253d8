"""Programs of our own that run jobs to measure a machine. Heavy imports stand in their workers only."""
