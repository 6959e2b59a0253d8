"""What tracing adds to a call of a module inside another one, and to a step of one process: microseconds of CPU time.

    python benchmarks/bench_module_calls.py [--pairs 5]

A forward through 0, 100, 300 and 1,000 modules that return what they are given, so that the calls are all there is; and
a whole step of a small model: forward, backward, optimizer. A process runs the depths and the step in turns, in blocks,
and the least block of each is what the code costs, undisturbed. Pairs of a traced and an untraced process, their order
alternating; of each pair's differences over the depths a line's slope is the cost of one inner call, and what is left
at depth 0 that of the outermost one.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness

DEPTHS = (0, 100, 300, 1_000)
BLOCKS = 40
#: CPU time of one block; a clock tick of the kernel's accounting is far below it.
BLOCK_NS = 5_000_000
STEP = "step"


def main() -> None:
    """Run the pairs, or be the process of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        options.job.write_text(json.dumps(least_us()), encoding="utf-8")
        return
    least: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="stashtrace-modules-") as name:
        for pair, traced in harness.in_pairs(options.pairs):
            least[traced].append(run(Path(name) / f"{pair}-{traced}", traced=traced))
    figures: dict[str, Any] = {}
    added = [{key: t[key] - p[key] for key in p} for t, p in zip(least[True], least[False], strict=True)]
    for key in (*map(str, DEPTHS), STEP):
        title = key if key == STEP else f"forward_{key}_inner"
        figures[f"{title}_untraced_us"] = harness.summary([one[key] for one in least[False]])
        figures[f"{title}_added_us"] = harness.summary([one[key] for one in added])
    slopes = [statistics.linear_regression(DEPTHS, [one[str(d)] for d in DEPTHS]).slope for one in added]
    figures["inner_call_added_us"] = harness.summary(slopes)
    command = f"python benchmarks/bench_module_calls.py --pairs {options.pairs}"
    harness.write_result("module_calls", figures, command=command, modules=("torch",), folder=options.out)
    print(json.dumps(harness.rounded(figures), indent=2))


def run(folder: Path, *, traced: bool) -> dict[str, float]:
    """Least microseconds of a process, by what it did."""
    result = folder / "least.json"
    harness.run_job([sys.executable, str(Path(__file__).resolve()), "--job", str(result)], folder, traced=traced)
    found: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
    return found


def least_us() -> dict[str, float]:
    """CPU microseconds of the thread for one forward of each depth, and for one step: the least of their blocks."""
    import gc

    import torch

    class Leaf(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    class Deep(torch.nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.leaves = torch.nn.ModuleList(Leaf() for _ in range(depth))

        def forward(self, x: Any) -> Any:
            for leaf in self.leaves:
                x = leaf(x)
            return x

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = torch.randn(10, 64)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    works: dict[str, Callable[[], Any]] = {str(depth): partial(Deep(depth), rows) for depth in DEPTHS}
    works[STEP] = step
    gc.disable()
    times = {name: max(1, BLOCK_NS // max(block_ns(work, 20) // 20, 1)) for name, work in works.items()}
    least = dict.fromkeys(works, float("inf"))
    for _ in range(BLOCKS):
        for name, work in works.items():
            least[name] = min(least[name], block_ns(work, times[name]) / times[name] / 1_000)
    return least


def block_ns(work: Callable[[], Any], times: int) -> int:
    """CPU time of the calling thread for that number of calls."""
    begin = time.thread_time_ns()
    for _ in range(times):
        work()
    return time.thread_time_ns() - begin


if __name__ == "__main__":
    main()
