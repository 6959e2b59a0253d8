"""Slow steps: which step took longer than comparable ones, whose time grew in it, and what happened meanwhile."""
