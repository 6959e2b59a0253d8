"""Collectives matched across ranks: who waited, what was transferred."""
