"""What the host of a job is: its processor, its file systems, and the memory that it may take."""
