"""What is known of a job, as series for monitoring systems: one list of them, and three ways out."""
