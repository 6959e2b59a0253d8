"""Time in which a step thread was blocked, or nothing was seen to run.

``other``: ``cause_kind`` is the call that blocks, ``asleep``, ``gil``, ``join``, ``poll``, ``lock``, ``file``,
``socket``, ``pipe`` or ``io``, or ``host_functions``; with ``_partly`` appended if that is most of the time, not all of
it. ``no_operator``, ``before_first``, ``launched_before``: a trace of another tool shows only that nothing ran. Else
``unknown``.

``dead_connection``: ``rank`` and its workers connected to ``name`` ``connects_count`` times in ``steps_count`` steps
and got nothing. Its ``kind`` is ``refused``, by what ``connect()`` returned or ``getsockopt(SO_ERROR)`` said later, or
``silent``, where the program got neither.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stashtrace.analysis.findings.blocked_calls import KNOWN_CALLS
from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.rules.stalls import devices
from stashtrace.analysis.findings.rules.stalls.loop_code import annotations_in, time_of_kind
from stashtrace.analysis.findings.stall_claims import confidence, stall_claim, verdict
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.intervals import TimeSet
from stashtrace.schema.kinds import IoFlag, IoOp, StallKind
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import HOST_NOT_RECORDED, OPERATORS_RECORDED, Trace, facts_named, is_stated
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text, shortened

#: Call that blocks -> what follows "5 ms of it"; the same for parts of the time that a batch takes.
BLOCKED_WORDS = {
    "asleep": "asleep (time.sleep, usleep or the like)",
    "gil": "waiting for the GIL, which another thread holds",
    "join": "waiting for a thread or a process to end (join, waitpid)",
    "poll": "in poll, select or epoll, as for a socket or a pipe",
    "lock": "waiting for a lock, a condition or a semaphore",
    "file": "in calls on files",
    "socket": "in calls of sockets (recv, send, connect)",
    "pipe": "in calls of pipes",
    "io": "in calls of devices",
    "cpu": "waiting for a CPU",
}
#: Sentences of which the verb is another one.
_OF_CALL = {
    "asleep": "{who} {who:spends|spend} {lost} {doing}",
    "gil": "{who} {who:waits|wait} {lost} for the GIL, which another thread holds",
}
#: All of a time of which only the cause is in doubt.
_WHOLE = "{stall_ns:time}{a_step} ({share_ratio:percent})"
#: How a connect fails where nobody answers at the other end.
_REFUSED = (errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


def main_call(rank: RankFacts) -> str:
    """Return the call that blocked the step thread for most of ``other``; empty if there is none."""
    call = max(rank.blocked_ns, key=rank.blocked_ns.__getitem__, default="")
    return call if rank.blocked_ns.get(call, 0) > POLICY.mostly_ratio * rank.kinds.get("other", 0) else ""


def blocked_claims(run: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    """Return the claim about ranks whose step thread is blocked, or in which nothing is seen to run."""
    claim = _claim(run, hit)
    rows = dead_connections(run.trace, hit[0].rank, run.tables["steps"])
    return [replace(claim, evidence=(*claim.evidence, *rows))]


def _claim(run: RunFacts, hit: Sequence[RankFacts]) -> Claim:
    worst, base = hit[0], stall_claim(hit, "other", COLUMNS["other"])
    blocked_ns = worst.kinds.get("other", 0)
    call = main_call(worst)
    cause = call if worst.blocked_ns.get(call, 0) >= (1 - POLICY.exact_ratio) * blocked_ns else f"{call}_partly"
    if call in KNOWN_CALLS:
        return _in_call(run, worst, base, call, cause)
    unseen = _unseen(run, worst, base)
    if unseen is not None:
        return unseen
    if worst.held_ns > POLICY.mostly_ratio * blocked_ns:
        return _in_host_functions(run, worst, base)
    # Waits too short to be recorded, and waits for a CPU after them, count as compute.
    high = base.stall_ns + worst.contention_ratio * worst.step_ns
    base = replace(base, high_ns=max(base.high_ns, high))
    base = replace(base, confidence=confidence(base.stall_ns, base.low_ns, base.high_ns))
    if call:
        return _in_call(run, worst, base, call, cause)
    said = "{who} {who:is|are} blocked {lost} with no known cause"
    short = "{who} {who:is|are} blocked {share} {of_step} with no known cause"
    rows = []
    if is_stated(run.trace, HOST_NOT_RECORDED):
        rows = [fact("nothing_recorded", "nothing was recorded in that time", "stalls", rank=worst.rank)]
    return verdict("other", said, run, base, rows, short=short, cause_kind="unknown")


def _in_call(run: RunFacts, worst: RankFacts, base: Claim, call: str, cause: str) -> Claim:
    """Return the claim about time that is mostly in one call. ``cause``: the call, and whether it is only a part."""
    words = {"doing": BLOCKED_WORDS[call]}
    if cause == call:
        said = _OF_CALL.get(call, "{who} {who:is|are} blocked {lost} {doing}")
        short = "{who} {who:is|are} blocked {share} {of_step} {doing}" if call != "asleep" else ""
    else:
        said, short = "{who} {who:is|are} blocked {lost}, {part} of it {doing}", ""
        words |= {"part": duration_text(worst.blocked_ns.get(call, 0) / max(worst.steps_count, 1))}
    return verdict("other", said, run, base, short=short, phrases=words, cause_kind=cause)


def _in_host_functions(run: RunFacts, worst: RankFacts, base: Claim) -> Claim:
    held_ns = worst.held_ns / max(worst.steps_count, 1)
    rows = devices.host_functions(run.trace, worst, run.tables["steps"])
    if worst.held_ns >= (1 - POLICY.exact_ratio) * worst.kinds.get("other", 0):
        said = "the streams of {who} {who:stand|stand} still for {lost} while the host runs functions of the job"
        return verdict("other", said, run, base, rows, cause_kind="host_functions")
    said = "{who} {who:is|are} blocked {lost}, up to {held} of it while the host runs functions of the job"
    words = {"held": duration_text(held_ns)}
    return verdict("other", said, run, base, rows, phrases=words, cause_kind="host_functions_partly")


def _unseen(run: RunFacts, worst: RankFacts, base: Claim) -> Claim | None:
    """Return the claim about time in which another tool's recording shows only that nothing ran; None for others."""
    rows = [row for row in devices.idle_reasons(run, worst) if row.code != "pauses"]
    if rows and sum(row["idle_ns"] for row in rows) > POLICY.mostly_ratio * worst.per_step_ns("other"):
        said = f"{{devices}} {{items_count:has|have}} no work in the recording for {_WHOLE} at its begin"
        if rows[0].code == "launched_before":
            said = "{devices} {devices:stands|stand} idle for {lost} although the next work had been launched"
        return verdict("other", said, run, base, rows, cause_kind=rows[0].code)
    if worst.method != "host" or not facts_of(run, OPERATORS_RECORDED, worst.rank):
        return None
    known = time_of_kind(run.trace, worst.rank, run.tables["steps"], StallKind.OTHER)
    rows = annotations_in(run.trace, *known, run.tables["steps"]) if known is not None else []
    call = rows[0]["name"] if rows and rows[0]["part_ratio"] >= POLICY.mostly_ratio else ""
    advice = "record_function() around parts of the loop, or with_stack=True in torch.profiler, would name the function"
    rows = rows or [fact("no_operator", advice, "stalls", rank=worst.rank)]
    what = "it waits, or runs Python" if base.items_count == 1 else "they wait, or run Python"
    where = f", mostly in {shortened(call, POLICY.name_characters)}" if call else ""
    said = (
        f"{{who}} {{items_count:runs|run}} no operator for {_WHOLE}{{where}}: {what}; this recording does not say which"
    )
    words = {"where": where}
    return verdict("other", said, run, base, rows, phrases=words, cause_kind="no_operator", call=call)


def facts_of(run: RunFacts, key: str, rank: int) -> list[str]:
    """Return what an importer recorded under this name about a rank."""
    processes = run.trace.processes
    of_rank = processes["process_id"][processes["rank"] == rank].tolist()
    return [value for process, value in facts_named(run.trace, key) if process in of_rank]


def dead_connections(trace: Trace, rank: int, steps: Table) -> list[Evidence]:
    """Return the address that a rank and its workers connect to most often in its steps, and get nothing from.

    Of a call that does not wait for the answer (a time-out was set), and of which the program does not learn later that
    it was refused, only the silence is known. Where less than every other step connects, it explains no time of a
    step.
    """
    of_rank = steps.take(steps["rank"] == rank)
    tracks = trace.tracks["track_id"][
        np.isin(trace.tracks["process_id"], trace.processes["process_id"][trace.processes["rank"] == rank])
    ]
    made, refused, alive = dict[int, int](), dict[int, int](), set[int]()
    for io in trace.io_pieces():
        rows = io.take(np.isin(io["track_id"], tracks) & ((io["io_flags"] & int(IoFlag.SOCKET)) != 0))
        connects = np.isin(rows["op_code"], (IoOp.CONNECT, IoOp.CONNECT_ERROR))
        moves = ~connects & (rows["result_bytes"] > 0)
        alive.update(rows["path_code"][moves].tolist())
        calls = rows.take(connects & (rows["result_bytes"] < 0))
        calls = calls.take(TimeSet.of_rows(of_rank).within(calls["begin_ns"], calls["begin_ns"] + 1) > 0)
        for call in calls.rows():
            path = call["path_code"]
            made[path] = made.get(path, 0) + (call["op_code"] == IoOp.CONNECT)
            refused[path] = refused.get(path, 0) + (-call["result_bytes"] in _REFUSED)
    dead = {path: count for path, count in made.items() if path not in alive and 2 * count >= len(of_rank)}
    if not dead:
        return []
    path = max(dead, key=lambda one: (dead[one], -one))
    is_refused = 2 * refused[path] > dead[path]
    answer = "which is refused or not answered" if is_refused else "and nothing comes over these connections"
    said = "rank {rank} connects to {name} {often} in {steps_count:step}, {answer}: a retry may be what it"
    known = Facts(rank=rank, name=trace.text(path), connects_count=dead[path], steps_count=len(of_rank))
    words = {"answer": answer, "often": count_noun(dead[path], "time")}
    kind = "refused" if is_refused else "silent"
    return [fact("dead_connection", f"{said} waits in", "io", phrases=words, kind=kind, **known)]
