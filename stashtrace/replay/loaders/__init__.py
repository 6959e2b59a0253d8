"""Changes of DataLoader workers: how many there are, whether epochs keep them, one that is slower than the others."""
