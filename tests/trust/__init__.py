"""What must not happen to a job: kills, damaged files, programs, scenes."""
