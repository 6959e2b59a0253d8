"""Rules about the steps: how many and how long, how they change, which are slow, which have the time of a verdict."""
