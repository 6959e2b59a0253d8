"""Take secrets out of what is stored, and replace names where a run is given away."""
