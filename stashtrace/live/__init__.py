"""A job while it runs: its steps as they close, what they cost, and what is wrong now."""
