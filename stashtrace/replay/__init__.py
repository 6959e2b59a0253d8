"""What if: the graph of a run, replayed with other lengths of its work."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.replay.changes import Change
from stashtrace.replay.slowdown import Ideal, slowdown_of
from stashtrace.replay.whatif import Answer, single_changes, what_if

__all__ = ["Answer", "Change", "Ideal", "single_changes", "slowdown_of", "what_if"]
