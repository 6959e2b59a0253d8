"""What if: replays of a run's graph with other lengths of its work."""

from __future__ import annotations

from stashtrace.replay.changes import BUCKET, Change
from stashtrace.replay.communication.buckets import Buckets, buckets_if_any, gradient_buckets
from stashtrace.replay.slowdown import Ideal, slowdown_of
from stashtrace.replay.whatif import Answer, best_buckets, best_workers, known_changes, single_changes, what_if

__all__ = [
    "BUCKET",
    "Answer",
    "Buckets",
    "Change",
    "Ideal",
    "best_buckets",
    "best_workers",
    "buckets_if_any",
    "gradient_buckets",
    "known_changes",
    "single_changes",
    "slowdown_of",
    "what_if",
]
