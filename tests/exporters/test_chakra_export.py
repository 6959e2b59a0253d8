"""Chakra execution traces: what a reader that shares no code with the writer finds, and how long they simulate.

The amounts are those of the drawings and of the made-up jobs. ``chakra_traces`` has the independent reader, the rules
of ASTRA-sim's feeder, and a simulator that brings the ranks together by their collectives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("google.protobuf")

from analysis.devices.device_simulation import Job as SimulatedJob
from builders import MS, TraceBuilder, trace_from_text
from chakra_traces import COLL, COMP, RECV, SEND, Traces, feeder_problems, simulate, step_ends_us
from corpus import corpus
from pipeline_files import load, two_stages
from pipeline_files import write as write_pipeline
from summary.scenes import job

import stashtrace
from stashtrace.analysis.graph import Resource, build
from stashtrace.cli import main
from stashtrace.errors import MissingDataError, StashtraceError, UsageError
from stashtrace.exporters.chakra.export import Messages
from stashtrace.exporters.registry import Exported, export
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.schema.chakra import COLLECTIVE_OPS
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.trace import Trace

#: Two ranks, rank 1 is late by 3 ms in each step; a transfer takes 2 ms.
LATE = """
rank 0 phase : FBBBBBBO|FBBBBBBO|FBBBBBBO
rank 0 cpu   : xx.....x|xx.....x|xx.....x
rank 0 coll  : ..00000...11111...22222
rank 0 block : ..00000...11111...22222
rank 1 phase : FBBBBBBO|FBBBBBBO|FBBBBBBO
rank 1 cpu   : xxxxx..x|xxxxx..x|xxxxx..x
rank 1 coll  : .....00......11......22
rank 1 block : .....00......11......22
"""
#: One worker takes 4 ms for a batch, the step needs 2 ms for one.
LOADED = """
rank 0 loader   : 0000..11..22..33..
rank 0 worker 0 : 000011112222333344445555
rank 0 phase    : ....FO..FO..FO..FO
rank 0 cpu      : ....xx..xx..xx..xx
"""


def drawn(text: str) -> Trace:
    return trace_from_text(text.replace("|", ""))


def written(trace: Trace, folder: Path, **options: Any) -> tuple[Traces, Exported]:
    found = export(trace, "chakra", folder / "et", **options)
    return Traces.read(folder / "et"), found


def said(result: Exported) -> str:
    return "\n".join(result.notes)


def together(ranks: Iterable[int], moments: tuple[int, int]) -> dict[int, tuple[int, ...]]:
    return dict.fromkeys(ranks, moments)


def between(moments: list[float]) -> list[float]:
    return [b - a for a, b in pairwise(moments)]


def times(traces: Traces, rank: int) -> list[tuple[int, str, int, list[int]]]:
    return [(n.id, n.name, n.duration_us, n.needs) for n in traces.nodes[rank]]


def test_a_late_rank(tmp_path: Path) -> None:
    traces, result = written(drawn(LATE), tmp_path)
    assert times(traces, 0) == [
        (1, "compute", 2000, []),
        (2, "all_reduce", 2000, [1]),
        (3, "compute", 1000, [1, 2]),
        (4, "compute", 2000, [3]),
        (5, "all_reduce", 2000, [2, 4]),
        (6, "compute", 1000, [4, 5]),
        (7, "compute", 2000, [6]),
        (8, "all_reduce", 2000, [5, 7]),
        (9, "compute", 1000, [7, 8]),
    ]
    assert [n.duration_us for n in traces.of_type(1, COMP)] == [5000, 1000] * 3
    assert [n.attrs["stashtrace_step"] for n in traces.of_type(1, COMP)] == [0, 0, 1, 1, 2, 2]
    for node in traces.of_type(0, COLL):
        assert node.attrs | {"stashtrace_sequence": 0, "stashtrace_group": "world"} == {
            "is_cpu_op": False,
            "comm_type": 0,
            "comm_size": 1 << 20,
            "pg_name": "0",
            "stashtrace_sequence": 0,
            "stashtrace_group": "world",
            "stashtrace_measured_ns": 2 * MS,
        }
    assert all(n.attrs["is_cpu_op"] for n in traces.of_type(0, COMP))
    assert not any("stashtrace_idle_ns" in n.attrs for r in (0, 1) for n in traces.nodes[r])
    assert (traces.versions, traces.groups) == ({"0.0.4"}, {})
    assert [traces.heads[r]["rank"] for r in (0, 1)] == [0, 1]
    assert result.notes == ("2 ranks, 18 nodes, 3 collectives, 1 communicator",)
    assert (result.rows_count, result.file_bytes) == (18, sum(p.stat().st_size for p in (tmp_path / "et").iterdir()))


def test_start_times_are_those_of_the_run(tmp_path: Path) -> None:
    traces, _ = written(drawn(LATE), tmp_path)
    assert [n.start_us for n in traces.nodes[0]][:6] == [0, 5000, 7000, 8000, 13000, 15000]


def test_batches_of_workers(tmp_path: Path) -> None:
    """Left out, what was waited for them stays; written, they make the thread wait by themselves."""
    waits, result = written(drawn(LOADED), tmp_path / "waits")
    assert times(waits, 0) == [
        (1, "compute", 2000, []),
        (2, "compute", 4000, [1]),
        (3, "compute", 4000, [2]),
        (4, "compute", 4000, [3]),
    ]
    assert [n.attrs.get("stashtrace_idle_ns", 0) for n in waits.nodes[0]] == [0, 2 * MS, 2 * MS, 2 * MS]
    assert "6 batches of workers left out, the waits for them kept as measured" in said(result)
    nodes, result = written(drawn(LOADED), tmp_path / "nodes", loaders="nodes")
    assert times(nodes, 0)[:6] == [
        (1, "batch", 4000, []),
        (2, "compute", 2000, [1]),
        (3, "batch", 4000, [1]),
        (4, "compute", 2000, [2, 3]),
        (5, "batch", 4000, [3]),
        (6, "compute", 2000, [4, 5]),
    ]
    assert "of workers written: ASTRA-sim runs one CPU node of a rank at a time" in said(result)


def jobs() -> list[tuple[str, Trace]]:
    return [
        ("late", drawn(LATE)),
        ("loaded", drawn(LOADED)),
        ("sleep", job(sleep={1: 20})[1]),
        ("prep", job(prep={0: 40}, workers=2)[1]),
        ("fetch", job(ranks=4, fetch={2: 30})[1]),
    ]


@pytest.mark.parametrize("loaders", ["waits", "nodes"])
@pytest.mark.parametrize("which", range(5), ids=[name for name, _ in jobs()])
def test_simulated_steps_are_those_of_the_run(tmp_path: Path, which: int, loaders: str) -> None:
    trace = jobs()[which][1]
    traces, _ = written(trace, tmp_path, loaders=loaders)
    assert feeder_problems(traces) == []
    graph = build(trace)
    ends = step_ends_us(traces, simulate(traces))
    begin = graph.begin_ns[graph.resource != Resource.TRANSFER].min() if loaders == "nodes" else None
    for rank, found in ends.items():
        measured = (graph.end_ns[graph.ends[graph.ends_rank == rank]] - (begin or 0)) / 1000
        if begin is None:  # counted from the first step thread's begin
            measured -= graph.begin_ns[graph.resource == Resource.STEP_THREAD].min() / 1000
        assert found == pytest.approx(measured.tolist(), abs=1)


def test_a_synthetic_run_takes_as_long_as_it_was_made_to(tmp_path: Path) -> None:
    made = SyntheticJob(ranks=4, steps=6, late_rank=2, late_ns=7 * MS)
    write(tmp_path / "run", made)
    trace = stashtrace.load(tmp_path / "run")
    traces, _ = written(trace, tmp_path)
    assert feeder_problems(traces) == []
    for ends in step_ends_us(traces, simulate(traces)).values():
        assert between(ends) == pytest.approx([made.step_ns / 1000] * 5, abs=1)
    assert [n.attrs["comm_size"] for n in traces.of_type(3, COLL)] == [25 << 20] * 6
    # Without transfers a step is shorter by what is waited for them: the late rank still holds up all others. The
    # thread goes on for 20 us after its call.
    for ends in step_ends_us(traces, simulate(traces, lambda node: 0)).values():
        assert between(ends) == pytest.approx([(made.step_ns - made.transfer_ns) / 1000 + 20] * 5, abs=1)


def test_a_faster_network_takes_effect_as_in_the_replay(tmp_path: Path) -> None:
    trace = job(ranks=4, sleep={1: 20}, transfer=8)[1]
    traces, _ = written(trace, tmp_path, loaders="nodes")
    graph = build(trace)
    shorter = graph.work_ns // 2 * (graph.resource == Resource.TRANSFER)
    replayed = graph.replay(work_ns=graph.work_ns - shorter)
    ends = step_ends_us(traces, simulate(traces, lambda node: node.attrs["stashtrace_measured_ns"] / 2000))
    begin = graph.begin_ns[graph.resource != Resource.TRANSFER].min()
    for rank, found in ends.items():
        wanted = (replayed.end_ns[graph.ends[graph.ends_rank == rank]] - begin) / 1000
        assert found == pytest.approx(wanted.tolist(), abs=1)


@pytest.mark.parametrize("loaders", ["waits", "nodes"])
def test_our_importer_reads_what_was_written(tmp_path: Path, loaders: str) -> None:
    traces, _ = written(job(ranks=3, prep={0: 40}, workers=2)[1], tmp_path, loaders=loaders)
    back = stashtrace.load(tmp_path / "et")
    nodes, waits = back.execution_nodes, back.execution_dependencies
    for rank, listed in traces.nodes.items():
        mine = nodes.take(nodes["rank"] == rank)
        assert mine["node_id"].tolist() == [n.id for n in listed]
        assert [back.text(code) for code in mine["name_code"]] == [n.name for n in listed]
        assert mine["duration_ns"].tolist() == [1000 * n.duration_us for n in listed]
        assert mine["input_bytes"].tolist() == [n.attrs.get("comm_size", 0) for n in listed]
        ops = [int(COLLECTIVE_OPS[n.attrs["comm_type"]]) if n.type == COLL else -1 for n in listed]
        assert mine["op_code"].tolist() == ops
        assert mine["collective_sequence"].tolist() == [n.attrs.get("stashtrace_sequence", -1) for n in listed]
        assert [back.text(code) for code in mine["group_code"]] == [n.attrs.get("pg_name", "") for n in listed]
        own = waits.take(waits["rank"] == rank)
        pairs = [(n.id, need) for n in listed for need in n.needs]
        assert list(zip(own["node_id"].tolist(), own["needed_node_id"].tolist(), strict=True)) == pairs
    assert len(nodes) == sum(map(len, traces.nodes.values()))


def test_eight_ranks_with_devices(tmp_path: Path) -> None:
    """One recorded step of DLRM: streams are no CPU, hosts are, and the simulation ends when each rank did."""
    trace = stashtrace.load([corpus(f"kineto/dlrm8_v100/rank{rank}.pt.trace.json.gz") for rank in range(8)])
    assert isinstance(trace, Trace)
    traces, result = written(trace, tmp_path)
    assert feeder_problems(traces) == []
    assert "8 ranks" in said(result)
    assert "8 collectives, 1 communicator" in said(result)
    table, graph = trace.collectives, build(trace)
    ends = simulate(traces)
    for rank in range(8):
        mine = table.take(table["rank"] == rank).sort_by("sequence")
        found = [(int(COLLECTIVE_OPS[n.attrs["comm_type"]]), n.attrs["comm_size"]) for n in traces.of_type(rank, COLL)]
        assert found == list(zip(mine["op_code"].tolist(), mine["message_bytes"].tolist(), strict=True))
        whole = (graph.end_ns[graph.rank == rank].max() - graph.begin_ns[graph.rank >= 0].min()) / 1000
        assert max(ends[rank].values()) == pytest.approx(whole, abs=1)
        devices = [n for n in traces.of_type(rank, COMP) if not n.attrs["is_cpu_op"]]
        busy = (graph.rank == rank) & (graph.resource == Resource.STREAM)
        spent = sum(n.duration_us - n.attrs.get("stashtrace_idle_ns", 0) / 1000 for n in devices)
        assert spent == pytest.approx(graph.work_ns[busy].sum() / 1000, rel=0.01)


@pytest.mark.parametrize("kernels", [True, False])
def test_what_events_or_kernels_time_on_devices_is_no_cpu(tmp_path: Path, kernels: bool) -> None:
    trace = SimulatedJob().trace(kernels=kernels)
    traces, _ = written(trace, tmp_path)
    graph = build(trace)
    for rank in (0, 1):
        computed = [n for n in traces.of_type(rank, COMP) if n.name == "compute" and not n.attrs["is_cpu_op"]]
        spent = sum(n.duration_us - n.attrs.get("stashtrace_idle_ns", 0) / 1000 for n in computed)
        device = (graph.rank == rank) & np.isin(graph.resource, (Resource.STREAM, Resource.DEVICE))
        assert spent > 0.5 * graph.work_ns[device].sum() / 1000 > 0


# Collectives ------------------------------------------------------------------------------------


def talking(*, steps: int = 3) -> tuple[TraceBuilder, list[int]]:
    """Four ranks that compute 10 ms a step, and the begins of their steps; collectives are for the test to add."""
    build_ = TraceBuilder()
    begins = [20 * MS * step for step in range(steps)]
    for rank in range(4):
        for begin in begins:
            build_.rank(rank).phase("forward", begin, begin + 10 * MS).phase(
                "optimizer", begin + 10 * MS, begin + 20 * MS
            )
    return build_, begins


def test_communicators_have_numbers(tmp_path: Path) -> None:
    """That of all ranks is 0 and in no list; others are numbered as they are used."""
    build_, begins = talking()
    world = build_.group([0, 1, 2, 3], group=7, name="world")
    pairs = [build_.group(members, group=members[0] + 8, name="pair") for members in ([0, 2], [1, 3])]
    for begin in begins:
        for group, members in zip(pairs, ([0, 2], [1, 3]), strict=True):
            build_.collective(
                together(members, (begin + MS, begin + 2 * MS)),
                group=group,
                op=CollectiveOp.ALL_GATHER,
                message_bytes=1000,
            )
        build_.collective(together(range(4), (begin + 4 * MS, begin + 9 * MS)), group=world, message_bytes=77)
    traces, result = written(build_.trace(), tmp_path)
    assert traces.groups == {"1": [0, 2], "2": [1, 3]}
    for rank, number in ((0, "1"), (1, "2"), (2, "1"), (3, "2")):
        found = [(n.attrs["pg_name"], n.attrs["comm_type"], n.attrs["comm_size"]) for n in traces.of_type(rank, COLL)]
        assert found == [(number, 2, 1000), ("0", 0, 77)] * 3
        assert [n.attrs["stashtrace_group"] for n in traces.of_type(rank, COLL)] == ["pair", "world"] * 3
    assert feeder_problems(traces) == []
    assert "9 collectives, 3 communicators" in said(result)
    simulate(traces)


def test_two_communicators_of_all_ranks_stay_two(tmp_path: Path) -> None:
    build_, begins = talking(steps=2)
    groups = [build_.group([0, 1, 2, 3], group=7 + len(name), name=name) for name in ("world", "others")]
    for group, at in zip(groups, (1, 4), strict=True):
        build_.collective(together(range(4), (begins[0] + at * MS, begins[0] + (at + 1) * MS)), group=group)
    traces, _ = written(build_.trace(), tmp_path)
    assert traces.groups == {"1": [0, 1, 2, 3]}
    assert [n.attrs["pg_name"] for n in traces.of_type(2, COLL)] == ["0", "1"]


@pytest.mark.parametrize("kind", sorted(COLLECTIVE_OPS))
def test_kinds_of_collectives(tmp_path: Path, kind: int) -> None:
    op = COLLECTIVE_OPS[kind]
    build_, begins = talking(steps=2)
    build_.collective(together(range(4), (begins[0] + MS, begins[0] + 2 * MS)), op=op, peer_rank=0)
    traces, result = written(build_.trace(), tmp_path)
    (node,) = traces.of_type(1, COLL)
    assert (node.name, node.attrs["comm_type"]) == (op.name.lower(), 7 if kind == 8 else int(kind))
    simulated = op.name in ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL")
    note = "replays as measured" if op is CollectiveOp.BROADCAST else "does not simulate"
    assert (f"ASTRA-sim {note}: 1 {op.name.lower()}" in said(result)) is not simulated


def test_messages_between_two_ranks(tmp_path: Path) -> None:
    """Both sides name source, target and the number of the message between the two."""
    build_, begins = talking()
    group = build_.group([3, 1], name="pipe")
    for sequence, begin in enumerate(begins):
        build_.collective(
            {3: (begin + MS, begin + 3 * MS)},
            op=CollectiveOp.SEND,
            group=group,
            peer_rank=1,
            sequence=sequence,
            message_bytes=500,
        )
        build_.collective(
            {1: (begin + 2 * MS, begin + 3 * MS)},
            op=CollectiveOp.RECEIVE,
            group=group,
            peer_rank=0,
            sequence=sequence,
            message_bytes=500,
        )
    traces, result = written(build_.trace(), tmp_path)
    for rank, kind in ((3, SEND), (1, RECV)):
        found = traces.of_type(rank, kind)
        ends = [(n.attrs["comm_src"], n.attrs["comm_dst"], n.attrs["comm_tag"], n.attrs["comm_size"]) for n in found]
        assert ends == [(3, 1, number, 500) for number in range(3)]
    assert feeder_problems(traces) == []
    assert "sends and receives" not in said(result)
    simulate(traces)


def test_a_send_that_nobody_received_is_reported(tmp_path: Path) -> None:
    build_, begins = talking()
    group = build_.group([0, 1], group=7, name="pipe")
    build_.collective({0: (begins[0] + MS, begins[0] + 2 * MS)}, op=CollectiveOp.SEND, group=group, peer_rank=1)
    _, result = written(build_.trace(), tmp_path)
    shown = ("1 send or receive without the other side", "1 collective that did not end, or whose sides do not match")
    assert any(text in said(result) for text in shown)


@pytest.mark.parametrize(
    ("peers", "shown", "known"),
    [
        ((1, 2), "2 sends and receives without the other side", {"comm_src", "comm_dst"}),
        ((-1, -1), "2 sends and receives of which the other rank is unknown", {"comm_src"}),
    ],
)
def test_messages_whose_sides_disagree_are_reported(
    tmp_path: Path, peers: tuple[int, int], shown: str, known: set[str]
) -> None:
    build_, begins = talking()
    group = build_.group([0, 1, 2], group=7, name="pipe")
    for rank, op, peer in ((0, CollectiveOp.SEND, peers[0]), (1, CollectiveOp.RECEIVE, peers[1])):
        build_.collective({rank: (begins[0] + MS, begins[0] + 2 * MS)}, op=op, group=group, peer_rank=peer, sequence=0)
    traces, result = written(build_.trace(), tmp_path)
    assert [note for note in result.notes if "sends and receives" in note] == [
        note for note in result.notes if note.startswith(shown)
    ]
    assert shown in said(result)
    (send,) = traces.of_type(0, SEND)
    assert {"comm_src", "comm_dst"} & set(send.attrs) == known


# What is not known ------------------------------------------------------------------------------


def test_unknown_payloads_are_reported_and_not_made_up(tmp_path: Path) -> None:
    build_, begins = talking()
    for begin in begins:
        build_.collective(together(range(4), (begin + MS, begin + 2 * MS)), message_bytes=-1)
    traces, result = written(build_.trace(), tmp_path)
    assert all("comm_size" not in n.attrs for n in traces.of_type(0, COLL))
    assert "3 collectives of unknown payload got no comm_size: ASTRA-sim stops there" in said(result)
    assert any("no {'comm_size'" in problem for problem in feeder_problems(traces))


def test_a_payload_that_another_member_knows(tmp_path: Path) -> None:
    build_, begins = talking()
    keys = build_.collective(together(range(4), (begins[0] + MS, begins[0] + 2 * MS)), message_bytes=640)
    build_.rows["collectives"][keys[2]]["message_bytes"] = -1
    traces, result = written(build_.trace(), tmp_path)
    assert [n.attrs["comm_size"] for n in traces.of_type(2, COLL)] == [640]
    assert "unknown payload" not in said(result)


def test_an_unknown_kind_is_reported(tmp_path: Path) -> None:
    build_, begins = talking()
    build_.collective(together(range(4), (begins[0] + MS, begins[0] + 2 * MS)), op=CollectiveOp.OTHER)
    traces, result = written(build_.trace(), tmp_path)
    assert [(n.name, "comm_type" in n.attrs) for n in traces.of_type(0, COLL)] == [("other", False)]
    assert "1 collective of unknown kind got no comm_type" in said(result)


def test_missing_members_are_reported(tmp_path: Path) -> None:
    """Rank 4 of five left no record, and one collective has no row of rank 1."""
    build_, begins = talking()
    group = build_.group(range(4), name="four")
    rows = build_.rows["groups"]
    for row in rows[-4:]:
        row["members_code"], row["group_size"] = build_.strings.code("0,1,2,3,4"), 5
    build_.collective(together(range(4), (begins[0] + MS, begins[0] + 2 * MS)), group=group)
    traces, result = written(build_.trace(), tmp_path)
    assert sorted(traces.nodes) == [0, 1, 2, 3]
    assert "no file of 1 rank, which a simulator needs: 4" in said(result)
    assert "1 collective without the part of a member, for which simulators wait without end" in said(result)


def test_a_collective_that_did_not_end_is_reported(tmp_path: Path) -> None:
    build_, begins = talking()
    build_.collective(together(range(4), (begins[0] + MS, begins[0] + 2 * MS)))
    build_.collective(together(range(3), (begins[2] + 19 * MS, -1)))
    traces, result = written(build_.trace(), tmp_path)
    assert [len(traces.of_type(r, COLL)) for r in range(4)] == [1, 1, 1, 1]
    assert "1 collective that did not end, or whose sides do not match, left out" in said(result)


def test_collectives_outside_of_the_steps_are_left_out(tmp_path: Path) -> None:
    begins = [20 * MS * step for step in range(3)]
    first, last = begins[0] + 100 * MS, begins[-1] + 20 * MS
    late = TraceBuilder()
    for rank in range(4):
        for begin in begins:
            at = begin + 100 * MS
            late.rank(rank).phase("forward", at, at + 10 * MS).phase("optimizer", at + 10 * MS, at + 20 * MS)
    for at in (first - 50 * MS, first + MS, last + 150 * MS):
        late.collective(together(range(4), (at, at + MS)), op=CollectiveOp.ALL_REDUCE)
    traces, result = written(late.trace(), tmp_path)
    assert [n.attrs["stashtrace_sequence"] for n in traces.of_type(0, COLL)] == [1]
    assert "2 collectives before the first step or after the last one left out" in said(result)


def test_only_some_steps(tmp_path: Path) -> None:
    trace = job(sleep={1: 20})[1]
    whole, _ = written(trace, tmp_path / "whole")
    some, result = written(trace, tmp_path / "some", steps=(3, 7))
    assert "8 batches of workers left out" in said(result)  # those of four steps of two ranks
    assert {n.attrs["stashtrace_step"] for n in some.of_type(0, COMP)} == {3, 4, 5, 6}
    assert [n.attrs["stashtrace_sequence"] for n in some.of_type(1, COLL)] == [3, 4, 5, 6]
    assert feeder_problems(some) == []
    lengths = [{r: between(ends) for r, ends in step_ends_us(t, simulate(t)).items()} for t in (whole, some)]
    for rank in (0, 1):
        assert lengths[1][rank] == pytest.approx(lengths[0][rank][3:6], abs=1)
    with pytest.raises(MissingDataError, match="none of these steps"):
        written(trace, tmp_path / "none", steps=(50, 60))


def test_a_pipeline_of_named_operations_is_refused(tmp_path: Path) -> None:
    trace = load(write_pipeline(tmp_path / "trace-X.parquet", two_stages({})))
    with pytest.raises(MissingDataError, match="wait for one another where no collective was recorded"):
        written(trace, tmp_path)
    assert not (tmp_path / "et").exists()


# Files and commands -----------------------------------------------------------------------------


def test_an_earlier_export_is_replaced_and_other_folders_are_not(tmp_path: Path) -> None:
    written(job(ranks=4)[1], tmp_path)
    assert len(list((tmp_path / "et").iterdir())) == 5
    traces, _ = written(job(ranks=2)[1], tmp_path)
    assert sorted(traces.nodes) == [0, 1]
    (tmp_path / "et" / "notes.txt").write_text("mine")
    with pytest.raises(StashtraceError, match="holds no execution traces"):
        written(job(ranks=2)[1], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StashtraceError, match="holds no execution traces"):
        export(job()[1], "chakra", tmp_path / "file")


def test_an_export_that_fails_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(job(ranks=2)[1], tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "et").iterdir()}

    def full(*_: object, **__: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Messages, "base", full)
    with pytest.raises(StashtraceError, match="No space left on device"):
        written(job(ranks=4)[1], tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "et").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["et"]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        written(job(ranks=3, prep={1: 10})[1], tmp_path / name, loaders="nodes")
    for path in (tmp_path / "one" / "et").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / "et" / path.name).read_bytes()


def test_without_protobuf_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Messages.load.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(StashtraceError, match="package protobuf") as error:
        export(job()[1], "chakra", tmp_path / "et")
    assert error.value.hint == "pip install 'stashtrace[chakra]'"
    assert not (tmp_path / "et").exists()
    Messages.load.cache_clear()


def test_options(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="loaders cannot be 'none'"):
        export(job()[1], "chakra", tmp_path / "et", loaders="none")
    with pytest.raises(UsageError, match="no option 'ranks'"):
        export(job()[1], "chakra", tmp_path / "et", ranks=[0])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "run", SyntheticJob(ranks=2, steps=5))
    assert main(["export", "chakra", str(tmp_path / "run"), "-o", str(tmp_path / "et"), "--steps", "1:4"]) == 0
    shown = capsys.readouterr().err
    # A step: until the call, 20 us after it, the optimizer; and the rank's part of the collective.
    assert "2 ranks, 24 nodes, 3 collectives, 1 communicator" in shown
    assert "of workers left out, the waits for them kept as measured" in shown
    assert feeder_problems(Traces.read(tmp_path / "et")) == []
    assert main(["export", "chakra", str(tmp_path / "run"), "-o", str(tmp_path / "et"), "--loaders", "x"]) == 2
    assert main(["export", "csv", str(tmp_path / "run"), "-o", str(tmp_path / "t"), "--loaders", "nodes"]) == 2
    capsys.readouterr()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("")
    assert main(["export", "chakra", str(tmp_path / "run"), "-o", str(tmp_path / "other")]) == 3
    assert "choose another folder with -o" in capsys.readouterr().err
