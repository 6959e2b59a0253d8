"""What is worth a line and a window while a job runs."""
