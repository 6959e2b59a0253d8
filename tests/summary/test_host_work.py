"""What the host does after a blocking call has drained its device, in made-up files of torch.profiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from importers.kineto_files import device, host, launch, step, write

import stashtrace
from stashtrace.analysis.findings import summarize
from stashtrace.errors import DataLossWarning
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document
from stashtrace.summary.summary_text import summary

MS = 1000.0  # stamps of the files are us
#: Work of a device in each step, the transfer of its all-reduce, and how long a launch takes.
COMPUTE, TRANSFER, LAUNCH = 20 * MS, 2 * MS, 10.0

Extra = Callable[[int, int], float]


def _none(rank: int, number: int) -> float:
    return 0.0


def job(
    folder: Path,
    *,
    ranks: int = 2,
    steps: int = 12,
    python: Extra = _none,
    name: str = "",
    cut: Mapping[int, float] | None = None,
) -> Trace:
    """Ranks that launch a kernel and an all-reduce in each step, then wait for their devices.

    ``python``: ms for which the host of a rank does something else at the begin of a step, in an annotation ``name``;
    ``cut``: rank -> the part of its file that is there.
    """
    events: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
    begin, key = 0.0, 0
    for number in range(steps):
        entered, calls = [], []
        for rank in range(ranks):
            mine, now, extra = events[rank], begin, python(rank, number) * MS
            if extra and name:
                mine.append(host(name, now, extra, cat="user_annotation"))
            now += extra + LAUNCH
            key += 2
            mine += [launch(key - 1, now - LAUNCH, LAUNCH), device("gemm", now, COMPUTE, correlation=key - 1)]
            entered.append(now + COMPUTE)
            calls.append(key)
        end = max(entered) + TRANSFER
        for rank, enter in enumerate(entered):
            talk = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20}
            talk |= {"Group size": ranks, "dtype": "Float", "Process Group Name": "0", "Seq": number}
            talk |= {"Process Group Ranks": str(list(range(ranks))), "correlation": calls[rank]}
            key += 1
            events[rank] += [
                launch(calls[rank], enter - COMPUTE / 2, LAUNCH),
                device("ncclDevKernel_AllReduce_Sum_f32_RING_LL", enter, end - enter, stream=20, **talk),
                launch(key, enter - COMPUTE / 4, end - enter + COMPUTE / 4 + 5, name="cudaStreamSynchronize"),
                step(number, begin, end + 5 - begin),
            ]
        begin = end + 5
    for rank, mine in enumerate(events):
        info = {"backend": "nccl", "rank": rank, "world_size": ranks}
        mine.sort(key=lambda event: float(event["ts"]))
        devices = [{"id": 0, "name": "H100"}]
        path = write(folder / f"rank{rank}.json", mine, distributedInfo=info, deviceProperties=devices)
        text = path.read_bytes()
        path.write_bytes(text[: int(len(text) * (cut or {}).get(rank, 1.0))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        return stashtrace.load(folder)


def _verdicts(trace: Trace) -> list[dict[str, Any]]:
    return [row for row in document(summarize(trace))["findings"] if row["section"] == "verdict"]


def _said(trace: Trace) -> str:
    return " ".join(summary(trace).split())


def test_the_host_is_the_cause_where_all_ranks_drain_their_devices_equally(tmp_path: Path) -> None:
    trace = job(tmp_path, ranks=4, python=lambda rank, number: 40.0 if rank == 3 else 0.0)
    first, second = _verdicts(trace)[:2]
    assert first["text"] == (
        "the device of rank 3 waits 40.0 ms a step (65 %) for its host, which mostly does something else between"
        " blocking calls and the next launches"
    )
    assert (first["kind"], first["cause_kind"], first["ranks"]) == ("host", "launch", "3")
    assert abs(first["stall_ns"] - 40e6) < 0.1e6
    said = first["evidence_text"]
    assert any("cudaStreamSynchronize" in line and "1 a step" in line and "for 40.0 ms a step" in line for line in said)
    assert second["text"].endswith(", all of it for rank 3")


def test_the_annotation_in_which_the_host_is_has_its_name(tmp_path: Path) -> None:
    trace = job(tmp_path, python=lambda rank, number: 40.0 if rank == 0 else 0.0, name="push_metrics")
    first = _verdicts(trace)[0]
    assert first["text"] == (
        "the device of rank 0 waits 40.0 ms a step (65 %) for its host, which is mostly in push_metrics between"
        " blocking calls and the next launches"
    )
    assert first["call"] == "push_metrics"
    assert _said(trace).startswith("the device of rank 0 waits 65 % of a step: its host is in push_metrics")


@pytest.mark.parametrize("name", ["save_checkpoint", "Trainer.save_checkpoint", "checkpoint"])
def test_a_checkpoint_is_called_one(tmp_path: Path, name: str) -> None:
    every_fourth: Extra = lambda rank, number: 160.0 if rank == 0 and number % 4 == 3 else 0.0  # noqa: E731
    trace = job(tmp_path, steps=24, python=every_fourth, name=name)
    found = {row["kind"]: row for row in _verdicts(trace)}
    assert found["save"]["text"].startswith("checkpoints stop rank 0 for 42.1 ms a step on average")
    assert "5 checkpoints in these steps, 160 ms on average" in found["save"]["evidence_text"]


def test_idle_time_of_a_cut_file_is_no_finding(tmp_path: Path) -> None:
    trace = job(tmp_path, ranks=4, cut={2: 0.65})
    said = _said(trace)
    assert not [row for row in _verdicts(trace) if row["kind"] in ("host", "other", "late")]
    assert "rank2.json ends early" in said
    assert "idle time of its device may be work that the cut took" in said
    assert "did not make the same number of steps" not in said
    # The step in which the file ends is not one of those that are counted.
    assert "step 7: that step is not counted" in said


def test_a_host_of_a_cut_file_is_not_blamed(tmp_path: Path) -> None:
    slow: Extra = lambda rank, number: 40.0 if rank == 1 else 0.0  # noqa: E731
    whole, cut = job(tmp_path / "whole", python=slow), job(tmp_path / "cut", python=slow, cut={1: 0.7})
    assert {row["kind"] for row in _verdicts(whole)[:2]} == {"host", "late"}
    assert not [row for row in _verdicts(cut) if row["kind"] in ("host", "other")]
    late = next(row for row in _verdicts(cut) if row["kind"] == "late")
    assert late["text"].endswith(", all of it for rank 1")
