"""When the steps of a run change: shifts, drifts and periods, and what they come from."""
