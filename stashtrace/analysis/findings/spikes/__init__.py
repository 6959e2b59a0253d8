"""Slow steps: which step took longer than its like, whose time grew in it, and what happened beside it."""
