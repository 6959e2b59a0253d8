"""A transfer is certain only where every rank of its operation is known to have entered before it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus import corpus
from importers.kineto_files import device, launch, step, write

import stashtrace
from stashtrace.analysis.links.bandwidth import transfer_certainty
from stashtrace.errors import DataLossWarning
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.trace import Trace

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEPS = 4
#: (enter, end) in microseconds of each rank's operation within a step of 1,000.
Times = Callable[[int, int], tuple[float, float]]


def _load(paths: Sequence[Path]) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        return stashtrace.load(list(paths))


def _job(folder: Path, ranks: Sequence[int], world: int, times: Times, name: str = SEND_RECV, **args: Any) -> Trace:
    """Files of some ranks: a kernel, then an operation of all of them, of which torch recorded nothing."""
    paths = []
    for rank in ranks:
        events = []
        for n in range(STEPS):
            enter, end = times(rank, n)
            at = 1000.0 * n
            events += [step(n, at, 1000), launch(2 * n + 1, at + 5), launch(2 * n + 2, at + 10)]
            events += [
                device("gemm", at + 20, enter - 20, correlation=2 * n + 1),
                device(name, at + enter, end - enter, stream=20, correlation=2 * n + 2, **args),
            ]
        info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}} if world > 0 else {}
        paths.append(write(folder / f"rank{rank}.json", events, **info))
    return _load(paths)


def _budget(trace: Trace) -> dict[tuple[int, str], tuple[int, int, int]]:
    """(rank, kind) -> point, low and high; both kinds of link as one."""
    table = stashtrace.analyze(trace, "stalls", by="rank", warmup=True)
    out: dict[tuple[int, str], tuple[int, int, int]] = {}
    for row in table.rows():
        kind = "link" if row["kind"] in ("network", "interconnect") else str(row["kind"])
        before = out.get((row["rank"], kind), (0, 0, 0))
        after = (row["stall_ns"], row["low_ns"], row["high_ns"])
        # The two kinds of link may each be the other: their bounds are those of the larger.
        out[row["rank"], kind] = (before[0] + after[0], before[1] + after[1], max(before[2], after[2]))
    return out


def _reasons(trace: Trace) -> dict[int, dict[str, int]]:
    out: dict[int, dict[str, int]] = {}
    for row in transfer_certainty(trace, warmup=True).rows():
        out.setdefault(row["rank"], {})[str(row["reason"])] = row["link_ns"]
    return out


def _late_rank_3(rank: int, _: int) -> tuple[float, float]:
    return (600.0 if rank == 3 else 200.0), 900.0


def test_sends_and_receives_that_end_together_wait_for_the_last(tmp_path: Path) -> None:
    trace = _job(tmp_path, range(4), 4, _late_rank_3)
    budget = _budget(trace)
    for rank in range(3):
        assert budget[rank, "straggler"] == (STEPS * 400_000, STEPS * 400_000, STEPS * 400_000)
        assert budget[rank, "link"] == (STEPS * 300_000, STEPS * 300_000, STEPS * 300_000)
    assert (3, "straggler") not in budget
    rows = stashtrace.analyze(trace, "stalls")
    assert set(rows["cause_rank"][rows["kind"] == "straggler"].tolist()) == {3}
    assert _reasons(trace) == {rank: {"certain": STEPS * 300_000} for rank in range(4)}


def test_messages_between_neighbours_are_not_taken_for_an_all_to_all(tmp_path: Path) -> None:
    """A pipeline: rank r sends when rank r - 1 is done, so a rank ends long before the last one begins."""
    trace = _job(tmp_path, range(4), 4, lambda rank, _: (100.0 + 200 * rank, 300.0 + 200 * rank))
    budget = _budget(trace)
    for rank in range(4):
        assert budget[rank, "link"] == (STEPS * 200_000, 0, STEPS * 200_000)
        assert budget[rank, "straggler"] == (0, 0, STEPS * 200_000)
    assert _reasons(trace) == {rank: {"operation_unknown": STEPS * 200_000} for rank in range(4)}


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_ranks_of_a_group_that_left_no_file(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    """1 or 2 of 16 files: torch names the size of the group, and cuts the list of its ranks."""
    args = {"Process Group Name": "7", "Process Group Ranks": "[0, 1, 2, ..., 14, 15]", "Group size": 16}
    trace = _job(tmp_path, ranks, 16, lambda rank, _: (200.0, 900.0), ALL_REDUCE, **args)
    budget = _budget(trace)
    for rank in ranks:
        assert budget[rank, "link"] == (STEPS * 700_000, 0, STEPS * 700_000)
        assert budget[rank, "straggler"] == (0, 0, STEPS * 700_000)
    assert _reasons(trace) == {rank: {"ranks_missing": STEPS * 700_000} for rank in ranks}


def test_a_file_that_says_nothing_of_its_job(tmp_path: Path) -> None:
    trace = _job(tmp_path, [0], 0, lambda rank, _: (200.0, 900.0), ALL_REDUCE)
    assert _budget(trace)[0, "link"] == (STEPS * 700_000, 0, STEPS * 700_000)
    assert _reasons(trace) == {0: {"members_unknown": STEPS * 700_000}}


def test_operations_that_are_not_the_same_although_their_numbers_are(tmp_path: Path) -> None:
    """Rank 1 is out of step: its n-th all-reduce begins after rank 0 has left its n-th."""
    trace = _job(tmp_path, range(2), 2, lambda rank, _: (100.0, 400.0) if rank == 0 else (600.0, 900.0), ALL_REDUCE)
    budget = _budget(trace)
    for rank in range(2):
        assert budget[rank, "link"] == (STEPS * 300_000, 0, STEPS * 300_000)
        assert budget[rank, "straggler"] == (0, 0, STEPS * 300_000), "it waited for nobody that is known"
    assert _reasons(trace) == {rank: {"matched_by_order": STEPS * 300_000} for rank in range(2)}


def test_ends_far_apart_leave_a_doubt(tmp_path: Path) -> None:
    """Rank 0 waits 400 of 500 us for rank 1 by their numbers, and rank 1 goes on 400 us after rank 0 has left."""
    trace = _job(tmp_path, range(2), 2, lambda rank, _: (100.0, 600.0) if rank == 0 else (500.0, 990.0), ALL_REDUCE)
    assert _budget(trace)[0, "straggler"][0] == STEPS * 400_000
    assert _budget(trace)[0, "link"] == (STEPS * 100_000, 0, STEPS * 100_000)
    assert _reasons(trace)[1] == {"matched_by_order": STEPS * 490_000}


def test_a_broadcast_of_which_nobody_names_the_root(tmp_path: Path) -> None:
    name = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    trace = _job(tmp_path, range(2), 2, lambda rank, _: (100.0 + 300 * rank, 900.0), name)
    assert _budget(trace)[0, "link"] == (STEPS * 800_000, 0, STEPS * 800_000)
    assert _reasons(trace)[0] == {"operation_unknown": STEPS * 800_000}


def test_dlrm_without_the_names_that_torch_gave() -> None:
    """Eight ranks, one host: SendRecv kernels alone show the same waits as torch's all_to_all."""
    named = _load(sorted(corpus("kineto/dlrm8_v100").glob("rank*")))
    assert {str(r) for own in _reasons(named).values() for r in own} == {"certain"}
    table = named.collectives
    of_kernels = np.where(table["op_code"] == CollectiveOp.ALL_TO_ALL, int(CollectiveOp.OTHER), table["op_code"])
    unnamed = named.replace(collectives=table.replace(op_code=of_kernels))
    wanted, found = (stashtrace.analyze(trace, "stalls") for trace in (named, unnamed))
    for column in ("rank", "kind", "stall_ns", "low_ns", "high_ns", "cause_rank"):
        assert found[column].tolist() == wanted[column].tolist(), column


def test_two_of_128_ranks() -> None:
    trace = _load(sorted(corpus("kineto/sampled_128").glob("*.gz")))
    budget = _budget(trace)
    for rank, own in _reasons(trace).items():
        assert set(own) <= {"ranks_missing", "matched_by_order"}
        assert budget[rank, "link"][1] == 0


def test_reasons_sum_to_the_link_time_of_stalls() -> None:
    trace = _load([corpus("kineto/one_rank_of_many/mi300_resnet_ckpt_rank0_of_8.json.gz")])
    assert sum(_reasons(trace)[0].values()) == _budget(trace)[0, "link"][0]
    # Torch numbered and named some; the kernels from before the recording are of no known operation.
    assert set(_reasons(trace)[0]) <= {"ranks_missing", "operation_unknown"}
