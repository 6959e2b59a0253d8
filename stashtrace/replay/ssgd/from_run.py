"""Layers of a recorded run: the messages of its backward passes, each with the computation that made its gradients.

A run does not record its layers, but when each message was ready and how long the link worked for it. The computation
between two messages is one "layer" here: all layers of the network that send their gradients together. Forward time is
divided like backward time. Forward and backward are those of the host; where its device is still busy with the step
before when they begin, all work of the device until the first message counts as backward.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.steps.steps import counted_steps, steps
from stashtrace.errors import MissingDataError
from stashtrace.replay.communication.messages import Messages, gradient_messages
from stashtrace.replay.ssgd.workload import Workload
from stashtrace.schema.kinds import Phase, PhaseFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


def layers_of_run(trace: Trace) -> tuple[list[Workload], int]:
    """Return one workload per backward pass of the lowest rank, and the number of ranks in its messages.

    All-reduces that are sent in a backward pass are its gradients; other operations count as computation. The rest of a
    step counts as its update, so that the replay of the recorded tasks is as long as the step was.

    ``trace``: needs steps, phases and messages that are sent in backward passes. Raises MissingDataError if there are
    no such messages, or callers wait for each of them.
    """
    messages = gradient_messages(trace)
    rows = np.flatnonzero((messages.backward >= 0) & messages.within & (messages.op == "all_reduce"))
    if not len(rows):
        raise MissingDataError(
            "no gradients were all-reduced inside a counted backward pass",
            hint="layers come from gradients that are sent while others are made, as by DistributedDataParallel",
        )
    rows = rows[messages.rank[rows] == messages.rank[rows].min()]
    if messages.blocking[rows].any():
        raise MissingDataError(
            "callers wait for messages inside backward", hint="layer-wise tasks need messages without waiting callers"
        )
    rank = int(messages.rank[rows[0]])
    known = counted_steps(steps(trace))
    known = known.take(known["rank"] == rank)
    # Devices may have other warm-up steps than their hosts.
    rows = rows[np.isin(messages.step[rows], known["step"])]
    if not len(rows):
        raise MissingDataError("no counted step has gradients", hint="record more steps than those of the warm-up")
    rows = rows[np.lexsort((messages.ready_ns[rows], messages.backward[rows]))]
    passes = np.split(rows, np.flatnonzero(np.diff(messages.backward[rows])) + 1)
    # Passes of other sizes are from steps before the buckets were rebuilt, or of another model.
    sizes = [tuple(messages.bytes[own].tolist()) for own in passes]
    usual = Counter(sizes).most_common(1)[0][0]
    forwards = _forwards(trace, rank)
    workloads = [
        _workload(messages, own, known, forwards) for own, size in zip(passes, sizes, strict=True) if size == usual
    ]
    return workloads, int(messages.ranks_count[rows[0]])


def _forwards(trace: Trace, rank: int) -> Table:
    """Return the training forward passes of a rank in order."""
    processes = trace.processes
    mine = processes["process_id"][(processes["rank"] == rank) & (processes["worker_id"] < 0)]
    phases = trace.phases
    chosen = (phases["phase_code"] == Phase.FORWARD) & np.isin(phases["process_id"], mine)
    return phases.take(chosen & ((phases["phase_flags"] & (PhaseFlag.NESTED | PhaseFlag.NO_GRAD)) == 0)).sort_by(
        "begin_ns"
    )


def _workload(messages: Messages, own: Int64, known: Table, forwards: Table) -> Workload:
    """Make the workload of one backward pass, with the layers of its messages in the order of the forward pass."""
    step = int(np.flatnonzero(known["step"] == messages.step[own[0]])[0])
    first, last = int(known["begin_ns"][step]), int(known["end_ns"][step])
    # A host may begin backward while its device is still busy with the step before.
    begin = max(int(messages.backward_begin_ns[own[0]]), first)
    ready = np.maximum.accumulate(np.maximum(messages.ready_ns[own] - begin, 0)).astype(np.float64)
    backward = np.diff(np.append(0.0, ready))
    inside = (forwards["begin_ns"] >= first) & (forwards["end_ns"] <= begin)
    forward = float((forwards["end_ns"][inside] - forwards["begin_ns"][inside]).sum())
    done = max(int(messages.end_ns[own].max()), begin + int(ready[-1]))
    share = backward / backward.sum() if backward.sum() > 0 else np.full(len(own), 1 / len(own))
    names = tuple(f"message {number}" for number in range(len(own)))
    return Workload(
        names[::-1],
        (forward * share)[::-1],
        backward[::-1],
        messages.link_ns[own][::-1],
        messages.bytes[own][::-1].astype(np.float64),
        update_ns=max(last - first - forward - (done - begin), 0.0),
    )
