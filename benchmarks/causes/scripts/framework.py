"""What the loops of frameworks have in common: their options, the stopwatch and the planted faults."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
from pathlib import Path

from faults import Faults
from stopwatch import Stopwatch


def begin(about: str) -> tuple[argparse.Namespace, int, Stopwatch, Faults]:
    """Read the options of a rank; return them, the number of ranks, its stopwatch and what it does too long."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--fault", action="append", default=[])
    options = parser.parse_args()
    world = int(os.environ["WORLD_SIZE"])
    watch = Stopwatch(options.clock, int(os.environ["RANK"]))
    return options, world, watch, Faults(options.fault, watch, world, options.clock)
