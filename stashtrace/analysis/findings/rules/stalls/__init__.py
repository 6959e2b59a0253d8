"""Rules about stalls: where the time of a step went, one file for each kind of verdict."""
