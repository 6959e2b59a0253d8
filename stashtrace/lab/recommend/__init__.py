"""Which instances to rent for a job."""
