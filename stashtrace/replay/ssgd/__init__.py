"""The DAG model of synchronous SGD: an iteration as layer-wise tasks of all workers that overlap."""

from __future__ import annotations

from stashtrace.replay.ssgd.iteration_study import Merge, Ring, merge_of, speedups
from stashtrace.replay.ssgd.tasks import PRESETS, VARIANTS, Replay, Variant, replay
from stashtrace.replay.ssgd.workload import Workload, read_layers, write_layers

__all__ = [
    "PRESETS",
    "VARIANTS",
    "Merge",
    "Replay",
    "Ring",
    "Variant",
    "Workload",
    "merge_of",
    "read_layers",
    "replay",
    "speedups",
    "write_layers",
]
