"""Five measurements of a job, and the stalls that their differences are."""
