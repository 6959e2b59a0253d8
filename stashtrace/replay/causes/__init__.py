"""causes: what makes the steps of a run long, as what its removal saves by a replay."""

from __future__ import annotations

from stashtrace.replay.causes.causes_table import CAUSES, causes, summary, what_to_do_first, without_causes

__all__ = ["CAUSES", "causes", "summary", "what_to_do_first", "without_causes"]
