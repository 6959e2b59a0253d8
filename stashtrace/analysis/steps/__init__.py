"""Where each step of each rank begins and ends, and of which kind it is."""
