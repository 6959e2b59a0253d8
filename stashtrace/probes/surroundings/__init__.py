"""What is around a traced process: the jobs that the site gave its GPUs to, and MPI."""
