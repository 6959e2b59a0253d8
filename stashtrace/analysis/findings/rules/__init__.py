"""Rules: each finds something, and words it by the named facts that it found, in one file.

The docstring of a rule is its part of ``docs/reference/findings.md``.
"""
