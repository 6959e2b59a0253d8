"""What-if answers on runs whose arithmetic is plain."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from analysis.graph.test_graph import LATE, LOADED, drawn
from builders import MS, TraceBuilder, trace_from_text

from stashtrace.analysis.graph import build
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.replay import Answer, Change, single_changes, what_if
from stashtrace.replay.causes import causes
from stashtrace.replay.whatif_text import limit_lines, whatif_lines
from stashtrace.schema.kinds import CollectiveOp, WaitOp


def asked(text: str, *changes: str) -> Answer:
    return what_if(drawn(text), map(Change.parse, changes))


def step_ms(answer: Answer) -> tuple[float, float]:
    return answer.low_ns / MS, answer.high_ns / MS


@pytest.mark.parametrize(
    ("changes", "expected_ms"),
    [
        ((), (8, 8)),
        (("interconnect.bandwidth=x2",), (7, 8)),  # all of one size: it may be latency alone
        (("interconnect.latency=x0.5",), (7, 8)),
        (("compute=x0.5",), (5, 5)),
        (("compute=x0.5", "interconnect.bandwidth=x2"), (4, 5)),
    ],
)
def test_a_job_with_a_late_rank(changes: tuple[str, ...], expected_ms: tuple[float, float]) -> None:
    answer = asked(LATE, *changes)
    assert step_ms(answer) == expected_ms
    assert (answer.measured_ns, answer.replayed_ns, answer.error_ratio) == (8 * MS, 8 * MS, 0.0)


@pytest.mark.parametrize(
    ("change", "expected_ms"), [("prep=x0.75", 3), ("prep=x0.25", 2), ("prep=0", 2), ("prep=x2", 8), ("compute=x2", 4)]
)
def test_a_job_that_waits_for_its_worker(change: str, expected_ms: float) -> None:
    assert asked(LOADED, change).high_ns == pytest.approx(expected_ms * MS, rel=0.1)


def test_of_two_ranks_the_late_one_is_as_fast_as_the_other() -> None:
    assert asked(LATE, "straggler=0").high_ns == pytest.approx(5 * MS, rel=0.03)


def answer_text(text: str, change: str) -> str:
    answer = asked(text, change)
    return " ".join(" ".join(whatif_lines(asked(text), [answer], asked=True)).split())


def test_an_answer_says_why_it_saves_nothing_or_more_than_its_time() -> None:
    assert answer_text(LATE, "interconnect.bandwidth=x2").endswith(
        "at worst nothing is saved, at best a step takes 7.00 ms: the recording leaves open which"
    )
    text = answer_text(LATE, "straggler=0")
    assert re.search(r"up to 2.\d+ ms of a step are saved, more than late takes on average over the ranks: waits", text)
    assert answer_text(LATE, "compute=x0.5").endswith("step 8.00 ms 5.00 ms")


def test_the_budget_adds_up_to_the_step_before_and_after() -> None:
    answer = asked(LATE, "straggler=0")
    assert answer.before_ns == {"compute": 4.5 * MS, "late": 1.5 * MS, "link": 2 * MS} | {
        name: 0.0 for name in answer.before_ns if name not in ("compute", "late", "link")
    }
    assert sum(answer.after_ns.values()) == pytest.approx(answer.high_ns, rel=0.1)
    assert answer.after_ns["late"] == pytest.approx(0, abs=MS / 10)
    assert answer.bottleneck == "link"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("fetch=0", "no wait for storage"),
        ("prep=x0.5", "no batch that took time to prepare"),
        ("h2d=0", "no copy between host and device"),
        ("launch=x0.5", "no launch of a kernel"),
        ("checkpoint=0", "no checkpoint that stopped a step"),
    ],
)
def test_a_time_that_a_run_does_not_have_is_refused_with_those_that_it_has(change: str, words: str) -> None:
    with pytest.raises(MissingDataError, match=words) as error:
        asked(LATE, change)
    assert error.value.hint == "times that this run has: compute"


def test_nobody_is_late_for_ranks_that_were_not_recorded() -> None:
    with pytest.raises(MissingDataError, match="only one rank") as error:
        asked(LATE[: LATE.index("rank 1")], "straggler=0")
    assert "all ranks" in error.value.hint


def test_ranks_that_never_meet_are_not_late() -> None:
    apart = TraceBuilder()
    for rank, length in ((0, 2 * MS), (1, 3 * MS)):
        for step in range(8):
            apart.rank(rank).phase("forward", step * length, (step + 1) * length - MS)
            apart.rank(rank).phase("optimizer", (step + 1) * length - MS, (step + 1) * length)
    with pytest.raises(MissingDataError, match="no collective was recorded"):
        what_if(build(apart.trace()), [Change.parse("straggler=0")])


def test_time_asleep_can_be_taken_away() -> None:
    """A step thread computes for 10 ms and sleeps for 15 ms of each step of 30 ms, of which 5 ms are the update."""
    asleep = TraceBuilder()
    for step in range(12):
        now, rank = step * 30 * MS, asleep.rank(0)
        ran = step * 15 * MS
        rank.phase("forward", now, now + 10 * MS, cpu=(ran, ran + 10 * MS), runqueue=(0, 0))
        rank.wait(WaitOp.SLEEP, now + 10 * MS, now + 25 * MS)
        rank.phase("optimizer", now + 25 * MS, now + 30 * MS, cpu=(ran + 10 * MS, ran + 15 * MS), runqueue=(0, 0))
    graph = build(asleep.trace())
    answer = what_if(graph, [Change.parse("other=0")])
    assert (answer.low_ns / MS, answer.high_ns / MS) == pytest.approx((15, 15), abs=0.05)
    assert str(single_changes(graph)[0].changes[0]) == "other=0"
    first = next(causes(asleep.trace()).rows())
    assert (first["kind"], first["level"], first["sure"]) == ("other", "gone", "sure")


def test_a_checkpoint_that_stops_the_step_can_be_taken_away() -> None:
    """10 ms of each second step are a checkpoint."""
    saving, now = TraceBuilder(), 0
    for step in range(20):
        saving.rank(0).phase("forward", now, now + 3 * MS)
        saving.rank(0).phase("optimizer", now + 3 * MS, now + 5 * MS)
        now += 5 * MS
        if step % 2:
            saving.rank(0).phase("checkpoint", now, now + 10 * MS)
            now += 10 * MS
    graph = build(saving.trace())
    answer = what_if(graph, [Change.parse("checkpoint=0")])
    assert answer.measured_ns == pytest.approx(10 * MS, rel=0.06)
    assert answer.low_ns == answer.high_ns == pytest.approx(5 * MS, rel=0.01)
    assert str(single_changes(graph)[0].changes[0]) in ("save=0", "compute=x0.5")


def test_edges_that_contradict_each_other_are_counted() -> None:
    trace = trace_from_text(LATE.replace("|", ""))
    graph = build(trace)
    assert limit_lines(trace, graph) == []
    back = {name: np.append(getattr(graph, name), getattr(graph, name)[:1]) for name in ("edge_kind", "lag_ns")}
    source, target = np.append(graph.source, graph.target[:1]), np.append(graph.target, graph.source[:1])
    contradicted = replace(graph, source=source, target=target, **back)
    (first, *_) = limit_lines(trace, contradicted)
    assert first.startswith(f"! 1 of {len(graph.source) + 1} edges form cycles")


def test_single_changes_are_ranked_by_what_they_save() -> None:
    answers = single_changes(drawn(LATE))
    saved = [answer.replayed_ns - (answer.low_ns + answer.high_ns) / 2 for answer in answers]
    assert saved == sorted(saved, reverse=True)
    assert {str(answer.changes[0]) for answer in answers[:2]} == {"late=0", "compute=x0.5"}
    assert len(answers) == 4  # no network, no batches


def test_without_a_late_rank_the_others_do_not_wait() -> None:
    """Of three ranks one takes 3 ms longer a step: the median of the three does not."""
    third = LATE[: LATE.index("rank 1")].replace("rank 0", "rank 2")
    answer = asked(LATE + third, "straggler=0")
    assert answer.measured_ns == 8 * MS
    assert answer.high_ns == pytest.approx(5 * MS, rel=0.02)


def test_a_rank_whose_worker_is_slow_is_late_as_well() -> None:
    """The worker of rank 1 takes 8 ms for a batch, those of the others 1 ms; the rest of a step takes 2 ms."""
    text = """
    rank 1 loader   : 000000..111111..222222..333333
    rank 1 worker 0 : 00000011111111222222223333334444
    rank 1 phase    : ......FB......FB......FB......FB
    rank 1 coll     : .......0.......1.......2.......3
    rank 1 block    : .......0.......1.......2.......3
    """
    for rank in (0, 2):
        text += f"""
        rank {rank} worker 0 : 1.......2.......3.......4
        rank {rank} phase    : FBBBBBBB|FBBBBBBB|FBBBBBBB|FBBBBBBB
        rank {rank} coll     : .0000000.1111111.2222222.3333333
        rank {rank} block    : .0000000.1111111.2222222.3333333
        """
    answer = what_if(drawn(text), [Change.parse("straggler=0")])
    assert answer.measured_ns == 8 * MS
    assert answer.high_ns == pytest.approx(2 * MS, rel=0.15)  # the first batches are made before anybody trains


@pytest.mark.parametrize("moments", [0, 3])
def test_messages_of_several_sizes_separate_latency_from_bandwidth(moments: int) -> None:
    """Each step moves 1 MB in 2 ms and 8 MB in 9 ms: 1 ms of latency, 1 ms a MB; what takes no time says nothing."""
    build_ = TraceBuilder()
    now = 0
    for _ in range(6):
        for rank in range(2):
            build_.rank(rank).phase("forward", now, now + MS).phase("optimizer", now + 12 * MS, now + 13 * MS)
        for begin, end, size in ((1, 3, 1_000_000), (3, 12, 8_000_000)):
            build_.meet(dict.fromkeys(range(2), now + begin * MS), now + end * MS, message_bytes=size)
        for _ in range(moments):
            build_.collective(dict.fromkeys(range(2), (now + 12 * MS, now + 12 * MS)), message_bytes=8)
        now += 13 * MS
    graph = build(build_.trace())
    answer = what_if(graph, [Change.parse("interconnect.bandwidth=x2")])
    assert answer.low_ns == answer.high_ns == pytest.approx(8.5 * MS, rel=0.01)
    slower = what_if(graph, [Change.parse("interconnect.latency=x3")])
    assert slower.high_ns == pytest.approx(17 * MS, rel=0.01)


@pytest.mark.parametrize(
    "text",
    [
        "speed=x2",
        "network=x2",
        "compute",
        "compute=2",
        "compute=xinf",
        "compute=x0",
        "compute=x-1",
        "straggler=x2",
        "network.bandwidth=0",
        "network.bandwidth=10ms",
        "network.latency=10gbit",
        "network.latency=0us",
        "workers=0",
        "workers=2.5",
        "workers=many",
        "workers=x0",
        "ranks=0",
        "ranks=1e3",
        "ranks=99999999",
        "compression=fp8",
        "compression=",
        "compression=x2",
        "straggler=1ms",
        "prep=1",
        "prep=-1ms",
        "=x2",
        "",
    ],
)
def test_what_cannot_be_changed_is_refused_with_what_can(text: str) -> None:
    with pytest.raises(UsageError) as error:
        Change.parse(text)
    assert error.value.hint


def test_changes_are_shown_as_they_are_typed() -> None:
    typed = "network.bandwidth=x2 late=0 prep=x0.5 storage=0 workers=8 ranks=x2 compression=fp16 prep=2.5ms"
    for text in (*typed.split(), "network.bandwidth=10gbit", "in-host.latency=x3", "python=x0.5"):
        assert str(Change.parse(text)) == text
    assert str(Change("compute", 0.5)) == "compute=x0.5"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("straggler=0", "late=0"),
        ("h2d=x0.5", "copy=x0.5"),
        ("fetch=x0.5", "storage=x0.5"),
        ("checkpoint=0", "save=0"),
        ("interconnect.bandwidth=x2", "in-host.bandwidth=x2"),
        ("workers=2", "workers=2"),
    ],
)
def test_ids_are_taken_and_shown_as_words(text: str, words: str) -> None:
    assert Change.parse(text) == Change.parse(words)
    assert (str(Change.parse(text)), Change.parse(words).option) == (words, text)


def test_amounts_are_in_ns_bits_a_second_and_numbers() -> None:
    texts = ("prep=2.5ms", "fetch=30us", "network.latency=1s", "network.bandwidth=10gbit", "workers=8")
    assert [Change.parse(text).amount for text in texts] == [2.5e6, 3e4, 1e9, 1e10, 8]
    assert Change.parse("prep=5ms").factor_from(2e6) == 2.5
    assert Change.parse("prep=x3").factor_from(2e6) == 3


@pytest.mark.parametrize(("change", "expected_ms"), [("compute=2.25ms", 5), ("compute=9ms", 14)])
def test_a_time_may_be_set(change: str, expected_ms: float) -> None:
    """A step of LATE computes 4.5 ms in the mean, 6 of them on the late rank, and 2 ms of transfer follow."""
    assert asked(LATE, change).high_ns / MS == pytest.approx(expected_ms, abs=0.01)


@pytest.mark.parametrize("change", ["compute=x99999999999999999999", "compute=999999999999s"])
def test_what_would_not_fit_64_bits_is_refused(change: str) -> None:
    with pytest.raises(UsageError, match="more than a hundred years"):
        asked(LATE, change)


def test_steps_that_take_no_time_are_refused() -> None:
    """By damaged times all but the first of them begin and end at one moment."""
    still = TraceBuilder()
    still.rank(0).phase("forward", 0, 3 * MS).phase("optimizer", 3 * MS, 5 * MS)
    for _ in range(8):
        still.rank(0).phase("forward", 5 * MS, 5 * MS).phase("optimizer", 5 * MS, 5 * MS)
    with pytest.raises(MissingDataError, match="took no time"):
        what_if(build(still.trace()), [])


def test_what_saves_little_is_not_listed_and_not_denied() -> None:
    """Two ranks compute for 4 us of a millisecond, and wait for a message for the rest of it."""
    idle, now = TraceBuilder(), 0
    for _ in range(12):
        for rank in range(2):
            idle.rank(rank).phase("forward", now, now + 2000).phase("optimizer", now + MS, now + MS + 2000)
        idle.meet(dict.fromkeys(range(2), now + 2000), now + MS, op=CollectiveOp.BARRIER)
        now += MS + 2000
    graph = build(idle.trace())
    saved = what_if(graph, [Change.parse("compute=x0.5")])
    assert 0 < 1 - saved.high_ns / saved.replayed_ns < 0.005
    listed = [answer for answer in single_changes(graph) if answer.changes[0].quantity == "compute"]
    assert listed == []
    lines = whatif_lines(what_if(graph, []), listed, asked=False)
    assert lines[-1] == "no single change would make a step shorter by 0.5 % or more"
