"""Rules about how a job ended: what it failed of, where it stood still, and what its ranks did last."""

#: Kinds of claims about how a job ended, which come before all others.
ENDINGS = ("failed", "ended_by_signal", "ended_with_code", "hung", "awaited", "mismatch")
