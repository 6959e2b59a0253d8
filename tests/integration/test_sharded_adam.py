"""The example that shards its optimizer: it ends with the parameters of the one that does not."""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from example_job import command_of_ranks
from forked_commands import environment
from installed import needs_torch

import stashtrace

torch = needs_torch()
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "sharded_adam.py"
BOTH = Path(__file__).parent / "programs" / "both_adams.py"


def launched(ranks: int, script: Path, *arguments: str, tracer: Sequence[str] = ()) -> None:
    """Run the example, or the script that runs it twice."""
    job = [*tracer, *command_of_ranks(ranks, str(script), *arguments)]
    variables = environment(OMP_NUM_THREADS="1")
    done = subprocess.run(job, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def trained(folder: Path, ranks: int) -> list[list[torch.Tensor]]:
    """Each rank's final parameters after ten steps of a network of 5,933, which neither two nor three divide.

    Of the optimizer that is on every rank, then of the sharded one.
    """
    launched(ranks, BOTH, str(folder), "--width", "33", "--hidden", "50", "--steps", "10")
    names = ("replicated", "sharded")
    return [[torch.load(folder / name / f"rank-{rank}.pt") for rank in range(ranks)] for name in names]


def first_parameters(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Parameters of the same network before training. The example imports torch: not while tests are collected."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    example = importlib.import_module("sharded_adam")
    torch.manual_seed(0)
    return torch.cat([parameter.data.flatten() for parameter in example.build_model(33, 50).parameters()])


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sharded_update_ends_where_the_whole_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    whole, shared = trained(tmp_path, ranks)
    for mine, other in zip(whole, shared, strict=True):
        assert torch.equal(mine, whole[0])
        assert torch.equal(other, shared[0])  # every rank has gathered what every owner computed
        # Sums of more than two gradients depend on their order.
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
    assert len(whole[0]) == 5934  # padded by one
    # Ten steps of Adam at 0.001 move a weight by about 0.01.
    moved = (shared[0][:-1] - first_parameters(monkeypatch)).abs()
    assert 0.003 < float(moved.median()) < 0.02


def advised(folder: Path) -> tuple[dict[str, Any], float]:
    """What the advice says of a recording with 2.1 M parameters, and the script's lap of its optimizer, in ns."""
    tracer = [sys.executable, "-m", "stashtrace", "run", "--out", str(folder / "run"), "--"]
    words = ("--hidden", "768", "--steps", "20", "--truth", str(folder / "truth"))
    launched(2, EXAMPLE, *words, tracer=tracer)
    table = stashtrace.analyze(stashtrace.load(folder / "run"), "overlap_advice")
    (split,) = (row for row in table.rows() if row["transformation"] == "split_reorder")
    laps = [
        statistics.median(
            {name: end - begin for name, begin, end in json.loads(line)["laps"]}["optimizer"]
            for line in (folder / "truth" / f"rank-{rank}.jsonl").read_text().splitlines()[5:]
        )
        for rank in range(2)
    ]
    return split, max(laps)


def test_a_recording_of_the_whole_update_is_understood(tmp_path: Path) -> None:
    split, _ = advised(tmp_path)
    weights = 768 * (2 * 1024 + 768) + 2 * 768 + 1024
    assert (split["message_bytes"], split["elements_count"]) == (4 * weights, weights)
    assert (split["op"], split["position"], split["ranks_count"]) == ("all_reduce", "after_backward", 2)
    assert (split["calls_count"], split["validity"]) == (1.0, "estimate")
    assert split["saving_high_ns"] >= 0.5 * split["work_ns"] >= split["saving_low_ns"] - 1


@pytest.mark.truth
def test_the_lap_of_the_update_is_its_all_reduce_and_its_work(tmp_path: Path) -> None:
    """The script's lap holds a division as well."""
    split, lap_ns = advised(tmp_path)
    assert 0 < split["work_ns"] < lap_ns
    assert split["work_ns"] + split["transfer_ns"] < 1.2 * lap_ns
