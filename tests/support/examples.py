"""How many examples a property is tried on: all of them in `make thorough`, a quarter in each run of the gate."""

from __future__ import annotations

from hypothesis import settings

#: Profiles (tests/conftest.py) that try all; they are loaded before tests are collected.
ALL = ("thorough", "explore")


def examples(count: int) -> int:
    """Return how many of ``count`` examples are tried by the profile that is loaded."""
    return count if settings.get_current_profile_name() in ALL else max(3, count // 4)
