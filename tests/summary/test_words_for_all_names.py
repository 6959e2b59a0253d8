"""Every name that one table gives to another has words there: a name without words costs the sentence.

The names are those of the enumerations that give them, so a new one without words is found here and not by a user.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from typing import Any

import pytest
from builders import MS
from scenes import row_texts, worded

from stashtrace.analysis.findings.batch_making import PARTS
from stashtrace.analysis.findings.claim_rows import Claim, Evidence
from stashtrace.analysis.findings.lateness.costliest_wait import WORK_NAMES
from stashtrace.analysis.findings.over_time.attribute_change import TOGETHER
from stashtrace.analysis.findings.spikes.spikes import SPIKES
from stashtrace.analysis.findings.unexplained_time import CALL_OF_WAIT, KNOWN_CALLS
from stashtrace.analysis.links.certainty import CERTAIN, NO_OPERATION
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.analysis.stragglers.causes import CAUSES
from stashtrace.live.view import text as live_text
from stashtrace.live.view.merged import CONDITIONS
from stashtrace.replay import BUCKET, change_times
from stashtrace.replay.changes import IN_ORDER, KEPT, TIMES
from stashtrace.report.page.page_words import KINDS
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import KIND_NAMES
from stashtrace.summary.words.cause_templates import cause_text


def of_a_verdict(kind: str = "late", **more: Any) -> Claim:
    """A verdict about rank 0, which loses 10 of 100 ms."""
    times = {"share_ratio": 0.1, "least_ratio": 0.1, "stall_ns": 10 * MS, "low_ns": 10 * MS, "high_ns": 10 * MS}
    return Claim("verdict", kind, **{"ranks": "0", "rank": 0, "items_count": 1, "confidence": "exact", **times, **more})


@pytest.mark.parametrize("name", WORK_NAMES)
def test_what_late_ranks_do_longer(name: str) -> None:
    root = Evidence("late_root", rank=1, part_ratio=0.6)
    work = Evidence("late_work", rank=1, kind=name, part_ratio=0.4)
    (said,) = row_texts(root, work)
    assert re.fullmatch(r"rank 1 makes 60 % of the waiting: it [^()]+ longer \(40 % of that\)", said)


@pytest.mark.parametrize("cause", CAUSES)
def test_why_a_rank_was_late(cause: str) -> None:
    wait = Evidence("worst_wait", rank=1, amount_ns=9 * MS, items_count=3, kind="all_reduce", name="0")
    for name in ("", "a name", "/data/shard.tar", "between phases"):
        because = Evidence("late_because", rank=1, amount_ns=9 * MS, low_ns=9 * MS, kind=cause, name=name)
        assert "rank 1 was late: " in row_texts(wait, because)[0]


@pytest.mark.parametrize("call", sorted({*CALL_OF_WAIT.values(), *KNOWN_CALLS, "io"}))
def test_calls_that_block(call: str) -> None:
    rows = (Evidence("blocked_in", rank=0, kind=call, amount_ns=9 * MS),)
    for cause in (call, f"{call}_partly", "unknown"):
        assert worded(of_a_verdict("other", cause_kind=cause, evidence=rows))
    other = Evidence("late_because", rank=0, amount_ns=9 * MS, kind="other")
    assert all(row_texts(Evidence("late_because", kind="other", name=wait), other) for wait in CALL_OF_WAIT)


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_batch(part: str) -> None:
    making = Evidence("batch_time", items_count=2, amount_ns=MS, low_ns=MS, high_ns=MS)
    rows = (making, Evidence("batch_part", kind=part, amount_ns=MS, part_ratio=0.9), Evidence("batch_part", kind=part))
    assert "of it " in worded(of_a_verdict("data", evidence=rows))[0]


@pytest.mark.parametrize(
    "kind", [*(kind for kind in KIND_NAMES if kind != "straggler"), "reads", TOGETHER, *QUIET_KINDS]
)
def test_kinds_of_time_that_change(kind: str) -> None:
    changed = Evidence("changed_time", rank=0, amount_ns=MS, kind=kind, name="0,1")
    for at in ("begin", "middle", "end"):
        rows = (Evidence("changed_steps", items_count=3, of_count=9, amount_ns=MS, kind=at), changed)
        assert worded(Claim("time", "shift", share_ratio=0.5, stall_ns=2 * MS, evidence=rows))
    slow = (Evidence("slow", items_count=2, of_count=9, amount_ns=MS, name="3, 7"), changed)
    assert worded(Claim("time", "slow_steps", share_ratio=0.1, evidence=(*slow, Evidence("grew_in", items_count=2))))


@pytest.mark.parametrize("figure", SPIKES.names[SPIKES.names.index("gc_ns") :])
def test_what_was_beside_slow_steps(figure: str) -> None:
    assert row_texts(Evidence("beside_slow", items_count=2, of_count=2, kind=figure.rpartition("_")[0]))


@pytest.mark.parametrize("place", ["network", "interconnect", "unknown"])
def test_transfers(place: str) -> None:
    for doubt in (CERTAIN, NO_OPERATION, "operation_unknown", "ranks_missing", "a reason that is new"):
        rows = (Evidence("may_be_waiting", kind=doubt),)
        assert worded(of_a_verdict("link", cause_kind=place, evidence=rows))


_SAVED = {"saved_ns": MS, "saved_low_ns": MS, "saved_high_ns": MS, "low_ratio": 0.1, "high_ratio": 0.1}
_OF_STEPS = {"steps_count": 4, "of_steps_count": 40, "every_count": 10, "event_ns": MS, "shape": ""}
_CAUSE = {
    **_SAVED,
    **_OF_STEPS,
    "reason": "",
    "change": "",
    "place": "",
    "place_ratio": 0.0,
    "caller": "",
    "python_ratio": -1.0,
    "backward_ratio": -1.0,
    "op": "",
    "worker_id": -1,
    "present_count": 2,
    "call": "",
    "work_ns": 3 * MS,
    "step_ns": 10 * MS,
    "of_step_ns": 10 * MS,
    "waiting_ranks": "3",
    "waiting_op": "all_reduce",
    "through_ranks": "",
    "waiting_ns": MS,
    "thread": "",
    "file": "",
    "file_call": "",
    "files_count": 0,
    "operations_count": 2.0,
    "moved_bytes": 1_000_000,
}


_KINDS_OF_CAUSES = (
    *(kind.name.lower() for kind in StallKind),
    "compile",
    "objects",
    "loads",
    "gradients",
    "unrecorded",
)


@pytest.mark.parametrize("quantity", ["workers", "slow_worker", KEPT, IN_ORDER, BUCKET])
def test_settings(quantity: str) -> None:
    row = {**_CAUSE, "where": "setting", "level": "setting", "kind": quantity, "change": f"{quantity}=0", "ranks": ""}
    for sure in ("sure", "likely", "perhaps"):
        assert "save" in cause_text({**row, "sure": sure}, "./run")
        assert cause_text({**row, "sure": sure, "ranks": "1", "worker_id": 3}, "./run")


@pytest.mark.parametrize("level", ["gone", "peers", "even", "usual", "half"])
@pytest.mark.parametrize(
    "kind", [*(kind.name.lower() for kind in StallKind), "compile", "objects", "loads", "gradients", "unrecorded", ""]
)
def test_causes(level: str, kind: str) -> None:
    for where in ("step", "worker", "link"):
        for ranks in ("1", "0,2") if level == "peers" else ("", "1"):
            row = {**_CAUSE, "where": where, "level": level, "kind": kind, "ranks": ranks, "sure": "likely"}
            said = cause_text(row, "./run")
            assert "saves 1.00 ms a step (10 %; 1.00 ms in another run)" in said
            assert "fault of stashtrace" not in said


def test_kinds_and_conditions() -> None:
    assert set(KIND_NAMES) <= set(KINDS)
    assert set(CONDITIONS) - {"quiet", "ended"} <= set(live_text._CONDITION_WORDS)
    timed = set(TIMES) - {"straggler", "slow_worker"}
    assert timed <= set(change_times._NAMES)
