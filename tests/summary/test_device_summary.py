"""What the summary says of ranks with devices: one thing wrong at a time, bounds worded as bounds."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from builders import MS, US, TraceBuilder
from scenes import verdicts

from stashtrace.analysis.collectives import shares
from stashtrace.analysis.findings.rules.stalls import link
from stashtrace.analysis.findings.summary_input import gather
from stashtrace.analysis.links.bandwidth import ExpectedTransfers
from stashtrace.schema.kinds import (
    Awaited,
    Bracket,
    BracketFlag,
    CollectiveSource,
    CopyDirection,
    DeviceCall,
    DeviceWork,
)
from stashtrace.schema.trace import Trace
from stashtrace.summary.style import Style
from stashtrace.summary.summary_text import summary

STEPS, STEP = 12, 100 * MS


def job(
    *,
    copy_ms: int = 0,
    function_ms: int = 0,
    late_ms: int = 0,
    transfer_ms: int = 0,
    starved: bool = False,
    graph_ms: int = 0,
    untimed: bool = False,
    marks: bool = True,
    sync: bool = False,
    unmaps: bool = False,
    kernels: tuple[int, ...] = (),
) -> Trace:
    """Two ranks whose device works through steps of 100 ms; rank 1 enters its all-reduce ``late_ms`` late."""
    build = TraceBuilder()
    compute, nccl = {}, {}
    for number in (0, 1):
        rank = build.rank(number).lives(0, (STEPS + 1) * STEP)
        gpu = rank.gpu(0, error_ns=700)
        compute[number], nccl[number] = gpu.stream("compute", compute=True), gpu.stream("nccl")
        for step in range(STEPS):
            base = step * STEP
            rank.phase("forward", base + MS, base + 2 * MS).phase("optimizer", base + 98 * MS, base + 100 * MS)
            begin = base if marks else -1
            compute[number].bracket(Bracket.STEP, begin, begin, host=(base, base), correlation=step)
            host = base + 5 * MS if not starved else base + 97 * MS
            compute[number].mark(base + 97 * MS, host_ns=host)
            if copy_ms:
                compute[number].bracket(
                    Bracket.COPY,
                    base + 5 * MS,
                    base + (5 + copy_ms) * MS,
                    host=(base, base + MS),
                    flags=BracketFlag.PAGEABLE,
                    copy=CopyDirection.HOST_TO_DEVICE,
                    size_bytes=60_000_000,
                )
            if function_ms:
                compute[number].bracket(
                    Bracket.HOST_FUNCTION, base + 40 * MS, base + (40 + function_ms) * MS, host=(base, base + MS)
                )
            if graph_ms:
                compute[number].graph(base + 10 * MS, base + (10 + graph_ms) * MS)
            if sync:
                gpu.call(DeviceCall.STREAM_SYNCHRONIZE, base + 10 * MS, base + 30 * MS, stream=compute[number])
            if unmaps:
                gpu.call(DeviceCall.UNMAP_MEMORY, base + 31 * MS, base + 32 * MS)
            if step in kernels:
                compute[number].kernel(base, base + 90 * MS)
        end = STEPS * STEP if marks else -1
        compute[number].bracket(Bracket.STEP, end, end, host=(STEPS * STEP, STEPS * STEP), correlation=STEPS)
    if late_ms or transfer_ms or untimed:
        for step in range(STEPS):
            base = step * STEP
            enter = {0: 20, 1: 20 + late_ms}
            end = 20 + late_ms + transfer_ms
            seen = {r: (-1, -1) if untimed else (base + enter[r] * MS, base + end * MS) for r in (0, 1)}
            times = {r: (base, base + MS, *seen[r]) for r in (0, 1)}
            build.device_collective(times, streams=nccl, source=CollectiveSource.PLUGIN, message_bytes=100_000_000)
            for r in (0, 1) if not untimed else ():
                compute[r].wait(
                    base + enter[r] * MS,
                    base + (end + 1) * MS,
                    awaited=Awaited.COLLECTIVE,
                    awaited_ns=base + end * MS,
                    host=(base, base + MS),
                )
    return build.trace("./stash-0412")


@pytest.mark.parametrize("utf8", [True, False])
def test_fits_80_columns(utf8: bool) -> None:
    trace = job(copy_ms=10, late_ms=20, transfer_ms=9, starved=True, sync=True, kernels=(6, 7, 8))
    assert max(map(len, summary(trace, style=Style(utf8=utf8)).splitlines())) <= 80


def shown(trace: Trace) -> str:
    return " ".join(summary(trace).split())


def test_pageable_copies_are_named_with_bytes_and_rate() -> None:
    found = verdicts(job(copy_ms=20))
    assert [f.kind for f in found] == ["copy"]
    assert found[0].text == "ranks 0,1 wait 20.0 ms a step (20 %) for copies between host and device"
    assert found[0].evidence[0].startswith("pageable copies: 1 a step, 60.0 MB at 3.00 GB/s: pin_memory=True")


def test_functions_that_hold_a_stream_up_are_named_and_explained() -> None:
    trace = job(function_ms=20)
    (found,) = verdicts(trace)
    assert found.kind == "other"
    assert (
        found.text
        == "the streams of ranks 0,1 stand still for 20.0 ms a step (20 %) while the host runs functions of the job"
    )
    assert found.evidence == ("functions on the host: 1 a step on compute, taking 20.0 ms",)
    assert "LOW CONFIDENCE" not in shown(trace)


def test_functions_that_explain_a_part_are_not_said_to_explain_all() -> None:
    facts = gather(job(function_ms=20))
    ranks = tuple(replace(rank, held_ns=rank.held_ns * 6 // 10) for rank in facts.ranks)
    (found,) = verdicts(replace(facts, ranks=ranks))
    assert found.text == (
        "ranks 0,1 are blocked 20.0 ms a step (20 %), up to 12.0 ms of it while the host runs functions of the job"
    )


def test_late_ranks_and_links_of_devices() -> None:
    trace = job(late_ms=30, transfer_ms=10)
    found = {f.kind: f for f in verdicts(trace)}
    assert found["late"].text == (
        "rank 0 waits 30.0 ms a step (30 %) for other ranks in all-reduce, all of it for rank 1"
    )
    assert "all-reduce reached 10.0 GB/s of bus bandwidth over 7 transfers" in found["link"].evidence
    text = shown(trace)
    assert "GPU by timing events, NCCL by its plugin" in text
    assert "devices ±700 ns" in text
    assert "invisible here: CPU contention" in text


def test_a_starved_device_is_a_bound() -> None:
    found = verdicts(job(starved=True))
    assert [f.kind for f in found] == ["host"]
    assert found[0].text.startswith("the devices of ranks 0,1 may stand idle for up to ")
    assert found[0].evidence[0].startswith("the host leads its device by 0 ns in the median of ")


def test_a_wait_before_memory_is_given_back_is_not_said_to_be_an_item() -> None:
    (first, *_) = verdicts(job(starved=True, sync=True, unmaps=True))
    said = " ".join(first.evidence)
    assert "stream_synchronize before unmap_memory (the wait of an allocator, as torch's expandable" in said
    assert ".item()" not in said


def test_blocking_calls_are_named_by_thread_and_number() -> None:
    found = verdicts(job(starved=True, sync=True))
    assert any(
        "stream_synchronize (also .item() and .cpu()) on main: 1 a step; the device runs out of work in them, for"
        in sentence
        for sentence in found[0].evidence
    )


def test_idle_by_kernels_is_a_verdict() -> None:
    found = verdicts(job(kernels=tuple(range(STEPS))))
    assert [f.kind for f in found] == ["host"]
    assert "wait 10.0 ms a step (10 %) for their hosts to launch work" in found[0].text


def test_graphs_and_untimed_collectives_cost_confidence() -> None:
    assert shown(job(graph_ms=40)).startswith("stashtrace LOW CONFIDENCE: 40 % inside CUDA graphs")
    assert "LOW CONFIDENCE: 100 % in untimed collectives" in shown(job(untimed=True))
    assert "LOW CONFIDENCE" not in shown(job(copy_ms=20))


def test_steps_by_the_host_of_a_rank_with_a_device_cost_confidence() -> None:
    assert "LOW CONFIDENCE: no timed step marks on the device" in shown(job(marks=False))


def test_agreement_is_one_line_after_deep_mode() -> None:
    text = shown(job(copy_ms=20, kernels=(6, 7, 8)))
    assert re.search(r"brackets and kernels agree to .* of a step over 3 steps", text)
    assert "kernels agree" not in shown(job(copy_ms=20))


def test_a_kernel_of_communication_needs_no_bracket() -> None:
    build = TraceBuilder()
    rank = build.rank(0).lives(0, 50 * MS)
    stream = rank.gpu(0).stream("s", compute=True)
    rank.phase("forward", 0, 5 * MS).phase("optimizer", 5 * MS, 10 * MS)
    stream.kernel(1 * MS, 9 * MS, launch=(MS, MS + 10 * US), work=DeviceWork.COMMUNICATION)
    assert "stashtrace" in summary(build.trace("x"))


def test_a_calibration_next_to_the_run_says_what_the_link_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = job(transfer_ms=10)
    known = np.full(len(trace.collectives), 9.2 * MS)
    answer = ExpectedTransfers(known, known * 0, np.zeros(len(known), dtype=np.int64))
    monkeypatch.setattr(link, "expected_transfers", lambda *_: answer)
    found = {f.kind: f for f in verdicts(trace)}
    assert found["link"].evidence[-1].endswith("over 7 transfers, 92 % of what this link can do by its calibration")


def test_a_calibration_of_another_machine_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = job(transfer_ms=10)
    trace.path = "run"
    monkeypatch.setattr(shares, "find_calibration", lambda _: SimpleNamespace(is_foreign=lambda hosts: True))
    found = {f.kind: f for f in verdicts(trace)}
    assert found["link"].evidence[-1].endswith("over 7 transfers")
