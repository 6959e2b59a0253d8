"""Every name that one table gives to another has words there: a name without words costs the sentence.

The names are those of the enumerations that give them, so a new one without words is found here and not by a user.
"""

from __future__ import annotations

import re

import pytest
from builders import MS

from stashtrace.analysis.findings.batch_making import PARTS
from stashtrace.analysis.findings.blocked_calls import CALL_OF_WAIT, KNOWN_CALLS
from stashtrace.analysis.findings.rules.stalls.batches import PART_WORDS
from stashtrace.analysis.findings.rules.stalls.blocked import BLOCKED_WORDS
from stashtrace.analysis.findings.rules.steps.slow import BESIDE, time_that_changes
from stashtrace.analysis.findings.spikes.slow_steps import TOGETHER
from stashtrace.analysis.findings.spikes.spikes import SPIKES
from stashtrace.analysis.stragglers.causes import CAUSES
from stashtrace.live.view import text as live_text
from stashtrace.live.view.watched import CONDITIONS
from stashtrace.replay import BUCKET, change_lengths
from stashtrace.replay.changes import IN_ORDER, KEPT, TIMES
from stashtrace.report.page.page_words import KINDS
from stashtrace.report.wait_text import late_because
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import KIND_NAMES
from stashtrace.summary.words.cause_templates import cause_text


def test_names_of_findings() -> None:
    assert {*CALL_OF_WAIT.values(), *KNOWN_CALLS, "io"} <= set(BLOCKED_WORDS)
    assert set(PARTS) <= set(PART_WORDS)
    assert {figure.rpartition("_")[0] for figure in SPIKES.names[SPIKES.names.index("gc_ns") :]} <= set(BESIDE)


@pytest.mark.parametrize("cause", CAUSES)
def test_why_a_rank_was_late(cause: str) -> None:
    wait = {"waiting_ranks": "0", "wait_ns": 9 * MS, "cause_kind": cause, "cause_ns": 9 * MS, "named_ns": 9 * MS}
    for name in ("", "a name", "/data/shard.tar", "between phases", *CALL_OF_WAIT):
        assert late_because({**wait, "cause_worker_id": -1, "cause_name": name})


@pytest.mark.parametrize("kind", [*(kind for kind in KIND_NAMES if kind != "straggler"), "reads", TOGETHER])
def test_kinds_of_time_that_change(kind: str) -> None:
    for grows in (True, False):
        assert re.match("ranks 0,1 .* 1.00 ms", time_that_changes(kind, "0,1", MS, grows))


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
    "excess_ratio": 0.0,
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
    "waiter": "",
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
            assert "saves 1.00 ms a step (10 %; expect 1.00 ms)" in said
            assert "fault of stashtrace" not in said


def test_kinds_and_conditions() -> None:
    assert set(KIND_NAMES) <= set(KINDS)
    assert set(CONDITIONS) - {"quiet", "ended"} <= set(live_text._CONDITION_WORDS)
    timed = set(TIMES) - {"straggler", "slow_worker"}
    assert timed <= set(change_lengths._NAMES)
