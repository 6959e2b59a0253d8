"""Layers of GoogLeNet as they were measured by others, and what an all-reduce cost on the same machines.

See ``tests/data/mg-wfbp/README.md`` for source and licence.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stashtrace.replay.ssgd import Workload

FILE = Path(__file__).resolve().parents[2] / "data/mg-wfbp/googlenet.csv"
#: Log -> seconds and seconds per byte of a message, by fits of the stand-alone benchmark of the same source.
LINKS = {"2": (1.02e-4, 1.660e-9), "4": (2.25e-4, 2.065e-9), "8": (7.11e-4, 3.508e-9), "8o": (7.11e-4, 3.508e-9)}
#: The same in ns and ns per byte.
COSTS = {log: (alpha * 1e9, beta * 1e9) for log, (alpha, beta) in LINKS.items()}


def column(name: str) -> np.ndarray:
    table = np.genfromtxt(FILE, delimiter=",", names=True)
    return np.asarray(table[name], dtype=np.float64)


def googlenet(log: str, *, communication: str = "comm") -> Workload:
    """The network as one log has it; forward is half of backward, since nobody measured it."""
    backward = column(f"backward_{log}_us") * 1e3
    names = tuple(f"layer {number:.0f}" for number in column("layer"))
    messages = column(f"{communication}_{log}_us") * 1e3
    return Workload(names, backward / 2, backward, messages, 4 * column("parameters"))
