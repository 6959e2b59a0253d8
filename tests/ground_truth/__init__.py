"""Real faults, the example, and two clocks: what the numbers of the budget are held to."""
