"""Start a job with the recorder in it and watch it; look at the machine."""
