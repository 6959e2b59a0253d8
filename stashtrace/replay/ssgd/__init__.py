"""The DAG model of synchronous SGD: an iteration as layer-wise tasks of all workers that overlap."""

from __future__ import annotations

from stashtrace.replay.ssgd.layer_file import read_layers, write_layers
from stashtrace.replay.ssgd.merging import Merge, merge_of
from stashtrace.replay.ssgd.speedup import Ring, speedups
from stashtrace.replay.ssgd.tasks import Replay, replay
from stashtrace.replay.ssgd.variants import PRESETS, VARIANTS, Variant
from stashtrace.replay.ssgd.workload import Workload

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
