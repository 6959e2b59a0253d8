"""What tracing adds to one training step, where the steps are so short that it shows: microseconds, not percents.

    python benchmarks/bench_probes.py [--pairs 5]

The pairs of `bench_overhead.py` bound the cost of a step of tens of milliseconds and cannot resolve it: the job itself
varies more. Here a step does next to nothing (one small layer, ten rows of memory a batch), so that what is left is
the probes. Of every hundred steps the CPU time is taken; the least of them is what the code costs, undisturbed. Traced
less untraced, in pairs whose order alternates:

    alone        one process that makes its batches: loader, forward, backward, optimizer, batch wait
    two ranks    DistributedDataParallel over gloo, one bucket: the same, an all-reduce and the thread that ends it
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

LAUNCHER = harness.ROOT / "tests" / "ground_truth" / "launch_ranks.py"
CHUNK = 100
STEPS = 5_000
#: A chunk of the first ones holds imports and allocations that come once.
WARM_CHUNKS = 5


def main() -> None:
    """Run the pairs, or be the job of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        train(options.job)
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="stashtrace-probes-") as name:
        for title, ranks in (("alone", 1), ("two_ranks", 2)):
            least: dict[bool, list[dict[str, float]]] = {False: [], True: []}
            for pair, traced in harness.in_pairs(options.pairs):
                least[traced].append(run(Path(name) / f"{title}-{pair}-{traced}", ranks, traced=traced))
            for clock in ("thread", "process", "wall"):
                plain, traced_us = ([one[clock] for one in least[traced]] for traced in (False, True))
                figures[f"{title}_{clock}_untraced_us"] = harness.summary(plain)
                added = [t - p for t, p in zip(traced_us, plain, strict=True)]
                figures[f"{title}_{clock}_added_us"] = harness.summary(added)
                print(
                    f"{title} {clock}: {statistics.median(plain):.0f} us, added {statistics.median(added):.0f} us",
                    file=sys.stderr,
                )
    command = f"python benchmarks/bench_probes.py --pairs {options.pairs}"
    harness.write_result("probes", figures, command=command, modules=("torch",), folder=options.out)
    print(json.dumps(harness.rounded(figures), indent=2))


def run(folder: Path, ranks: int, *, traced: bool) -> dict[str, float]:
    """Least microseconds per step of a job, by clock; the mean over its ranks."""
    command = [sys.executable, str(Path(__file__).resolve()), "--job", str(folder)]
    if ranks > 1:
        command = [sys.executable, str(LAUNCHER), "--ranks", str(ranks), "--", *command]
    harness.run_job(command, folder, traced=traced)
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("least-*.json"))]
    if len(found) != ranks:
        raise RuntimeError(f"{len(found)} of {ranks} ranks said how long they took")
    return {clock: statistics.mean(one[clock] for one in found) for clock in found[0]}


def train(folder: Path) -> None:
    """A job whose steps do next to nothing; writes its least chunk by each clock."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = torch.nn.Linear(64, 64)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    clocks = {"thread": time.thread_time_ns, "process": time.process_time_ns, "wall": time.perf_counter_ns}
    chunks: list[dict[str, int]] = []
    begin = {name: clock() for name, clock in clocks.items()}
    for number, (rows,) in enumerate(DataLoader(TensorDataset(torch.randn(10 * STEPS, 64)), batch_size=10), 1):
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % CHUNK == 0:
            end = {name: clock() for name, clock in clocks.items()}
            chunks.append({name: end[name] - begin[name] for name in clocks})
            begin = {name: clock() for name, clock in clocks.items()}
    least = {name: min(chunk[name] for chunk in chunks[WARM_CHUNKS:]) / CHUNK / 1000 for name in clocks}
    (folder / f"least-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(least))
    if ranks > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
