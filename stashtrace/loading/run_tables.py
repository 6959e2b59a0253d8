"""Tables that describe a run as a whole: processes, losses, metadata and alignment.

The losses include ranks and hosts without a file here, and the other starts of an elastic job. And where a recording
begins that has only a part of its job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace.files.run_facts import GPU_INVENTORY, PEEKS, STACKS, WINDOW_STEPS
from stashtrace.format.liveness import LiveRings
from stashtrace.format.reader import RawRun
from stashtrace.loading.clocks.host_clock import RunClocks
from stashtrace.loading.decode import Decoded
from stashtrace.loading.process_identity import Identity, Process
from stashtrace.record.peek.model import PEEK_FACT
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import ProcessRole, Severity, TrackKind
from stashtrace.schema.order import SORT_KEYS, in_order_of, number_collectives
from stashtrace.schema.possible import rank_number
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import LossRow, Trace, losses_columns
from stashtrace.schema.tracks import TrackRegistry
from stashtrace.text.units import ranks_named, span_text

_HOSTS_NAMED = 4


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """An opened run: everything except its rows."""

    #: Its directories, joined by ``os.pathsep``.
    path: str
    #: One for each directory.
    runs: list[RawRun]
    #: All processes that left a file.
    everyone: list[Process]
    #: The processes to load, numbered.
    processes: list[Process]
    #: int, list of int; Start of an elastic job that has the ranks, and all starts; -1 and none if the job is not
    #: elastic.
    start: int
    starts: list[int]
    #: True if all ranks are loaded.
    all_ranks: bool
    clocks: RunClocks
    strings: StringPool
    tracks: TrackRegistry
    #: Contradictions found when the clocks of several hosts were aligned.
    clock_losses: list[LossRow]
    #: Faults in the readings of device clocks.
    device_losses: list[tuple[int, LossRow]]


def describe(run: OpenedRun, decoded: Sequence[Decoded]) -> dict[str, Table]:
    """Return the tables processes, losses, metadata, alignment and tracks, by name.

    ``decoded``: of each process, in the order of decoding. Their I/O calls have been read, if they are wanted.
    """
    return {
        "processes": _process_table(run, decoded),
        "losses": _loss_table(run, decoded),
        "metadata": _metadata_table(run, decoded),
        "alignment": _alignment_table(run),
        "stacks": _stack_table(run),
        "tracks": run.tracks.table(),
    }


def _process_table(run: OpenedRun, decoded: Sequence[Decoded]) -> Table:
    code = run.strings.code
    ends_ns = {d.number: max(d.end_ns, d.io.end_ns) for d in decoded}
    rows = []
    for process in run.processes:
        known, who, begin = process.file.metadata, process.identity, process.begin_ns
        rows.append(
            (
                process.number,
                code(str(known.get("host", ""))),
                code(str(known.get("boot_id", ""))),
                code(str(known.get("netns", ""))),
                process.facts.pid,
                who.parent,
                who.rank,
                who.local_rank,
                who.world_size,
                int(who.role),
                who.worker_id,
                code(who.name),
                begin,
                max(begin, ends_ns[process.number]),
            )
        )
    return Table.from_rows(TABLES["processes"], rows)


def _metadata_table(run: OpenedRun, decoded: Sequence[Decoded]) -> Table:
    """Return the facts of the run, then those of its processes."""
    origin = run.clocks.origin_monotonic_ns
    reference = next(clock for clock in run.clocks if clock.boot_id == run.clocks.reference)
    facts = {
        "origin_monotonic_ns": str(origin),
        "origin_realtime_ns": str(origin + reference.realtime_offset_ns),
        "run_id": run.runs[0].run_id,
    }
    if (joint := _joint_window(run)) is not None:
        facts[WINDOW_FACT] = joint.fact(origin)
    for raw in run.runs:
        for key, value in raw.run.items():
            if key in ("parts", GPU_INVENTORY, PEEKS):  # of each host; `stashtrace info` shows them
                continue
            facts.setdefault(key, " ".join(map(str, value)) if isinstance(value, list) else str(value))
    of_run = {
        "process_id": np.full(len(facts), -1, dtype=np.int64),
        "key_code": run.strings.codes(facts),
        "value_code": run.strings.codes(facts.values()),
    }
    schema = TABLES["metadata"]
    peeks = Table.from_rows(schema, list(_peeks(run)))
    return Table.concat(schema, [Table(schema, of_run), *(d.tables.metadata for d in decoded), peeks])


def _peeks(run: OpenedRun) -> Iterator[tuple[int, int, int]]:
    """Yield the peeks that followers took while the job lived, as facts of the processes that they looked at."""
    numbers = {(str(p.file.metadata.get("host", "")), p.facts.pid): p.number for p in run.processes}
    for raw in run.runs:
        for kept in (peek for facts in (raw.run, *raw.host_facts) for peek in facts.get(PEEKS, ())):
            number = numbers.get((kept["host"], kept["pid"]))
            if number is not None:
                yield number, run.strings.code(PEEK_FACT), run.strings.code(kept["look"])


def _stack_table(run: OpenedRun) -> Table:
    """Return the functions that were sampled of threads that have a track; the tracks must be known by now."""
    schema, tracks = TABLES["stacks"], run.tracks.table()
    known = tracks["kind_code"] == TrackKind.THREAD
    track_of = {
        (int(row["process_id"]), int(row["native_id"])): int(row["track_id"]) for row in tracks.take(known).rows()
    }
    processes = {(str(p.file.metadata.get("host", "")), p.facts.pid): p for p in run.processes}
    tables = []
    for recorded in (one for raw in run.runs for facts in raw.host_facts for one in facts.get(STACKS, ())):
        process = processes.get((recorded["host"], recorded["pid"]))
        if process is None:
            continue
        names, common_ns = run.strings.codes(recorded["functions"]), process.clock.common_ns
        rows = [
            (common_ns(begin), common_ns(end), track, depth, line, int(names[function]))
            for tid, begin, end, function, line, depth in recorded["rows"]
            if (track := track_of.get((process.number, tid))) is not None
        ]
        tables.append(Table.from_rows(schema, rows))
    return in_order_of(Table.concat(schema, tables), SORT_KEYS["stacks"])


def _alignment_table(run: OpenedRun) -> Table:
    code, reference = run.strings.code, run.clocks.reference
    rows = [
        (code(clock.boot_id), code(reference), *clock.worth(), code(clock.method))
        for clock in run.clocks.of_boots().values()
    ]
    return Table.from_rows(TABLES["alignment"], rows)


# Losses -----------------------------------------------------------------------------------------


def _loss_table(run: OpenedRun, decoded: Sequence[Decoded]) -> Table:
    """Return the losses of the decoders, then all others; equal losses of a process are added up in one row."""
    merged: dict[int, dict[tuple[str, str, int, str], int]] = {}
    for process_id, (collector, reason, severity, count, advice) in _losses(run, decoded):
        of_process, key = merged.setdefault(process_id, {}), (collector, reason, severity, advice)
        of_process[key] = of_process.get(key, 0) + count
    tables = [d.tables.losses for d in decoded]
    for process_id in sorted(merged):
        rows = [(c, r, s, n, a) for (c, r, s, a), n in merged[process_id].items()]
        tables.append(Table(TABLES["losses"], losses_columns(process_id, rows, run.strings)))
    return Table.concat(TABLES["losses"], tables)


def _losses(run: OpenedRun, decoded: Sequence[Decoded]) -> Iterator[tuple[int, LossRow]]:
    """Yield each loss with the number of its process; -1 for the run."""
    of_run = [*run.clock_losses, *_other_starts(run), *(_missing_ranks(run) if run.all_ranks else ())]
    for name in (name for d in decoded for name in d.unknown_collectors):
        text = f"records of {name} cannot be read by this stashtrace"
        of_run.append(("format", "no_decoder", int(Severity.ERROR), 1, text))
    of_run += (row for raw in run.runs for row in raw.losses)
    rejected = sum(clock.map.rejected_count for clock in run.clocks)
    if rejected:
        text = "some clock readings contradict the others; the host may have been suspended"
        of_run.append(("core", "clock_readings_rejected", int(Severity.ERROR), rejected, text))
    of_run += _bent_clocks(run)
    of_run += _still_recording(run)
    yield from ((-1, row) for row in of_run)
    yield from run.device_losses
    yield from ((d.number, row) for d in decoded for row in (*d.losses, *d.io.losses))
    yield from ((p.number, row) for p in run.processes for row in p.file.losses)


def _other_starts(run: OpenedRun) -> Iterator[LossRow]:
    """Yield a note if the job was started several times, with the number of the loaded start."""
    shown, known = run.start, run.starts
    if len(known) < 2:
        return
    run_id = run.runs[0].run_id[:8]
    others = " or ".join(f"--run {run_id}.{number}" for number in known if number != shown)
    advice = (
        f"torchrun started the ranks {len(known)} times; shown is start {shown} of 0 to {known[-1]}, {others} has "
        "the others"
    )
    yield ("format", "other_starts", int(Severity.INFO), len(known) - 1, advice)


def _missing_ranks(run: OpenedRun) -> Iterator[LossRow]:
    """Yield a loss if ranks of the job left no file here; it names the hosts that may have their files."""
    there, missing, world = missing_ranks([p.identity for p in run.everyone])
    if not missing or not there:
        return
    seen = {str(p.file.metadata.get("host", "")) for p in run.everyone if p.identity.role is ProcessRole.RANK}
    absent = [host for host in _launched_on(run.runs) if host not in seen]
    more = ", ..." if len(absent) > _HOSTS_NAMED else ""
    where = f" (its part{'s' if len(absent) > 1 else ''} on {', '.join(absent[:_HOSTS_NAMED])}{more})" if absent else ""
    advice = (
        f"{ranks_named(missing)} of {world}: no file{where}; {run.path} holds {ranks_named(there)}; merge the"
        " directories of the other hosts: "
        f"`stashtrace merge DIR OTHER...`"
    )
    yield ("format", "ranks_missing", int(Severity.DATA_LOSS), len(missing), advice)


def missing_ranks(identities: Sequence[Identity]) -> tuple[list[int], list[int], int]:
    """Return (present ranks, missing ranks, world size) of a run; the size is -1 if unknown."""
    present = {i.rank for i in identities if i.role is ProcessRole.RANK}
    world = max((i.world_size for i in identities if i.role is ProcessRole.RANK), default=-1)
    return sorted(present), [r for r in range(world) if r not in present], world


def _launched_on(runs: Sequence[RawRun]) -> list[str]:
    """Return the hosts on which a launcher recorded its start."""
    parts = [part for run in runs for part in run.run.get("parts") or [] if isinstance(part, dict)]
    return list(dict.fromkeys(str(part["host"]) for part in parts if part.get("host")))


def _bent_clocks(run: OpenedRun) -> Iterator[LossRow]:
    """Yield what a library in front of libc makes of the job's clock; what is recorded has the kernel's times."""
    for metadata in (process.file.metadata for process in run.processes):
        ahead_ns, ns_per_s = (metadata.get(f"job_clock_{name}") for name in ("ahead_ns", "ns_per_s"))
        if not isinstance(ahead_ns, int) or not isinstance(ns_per_s, int):
            continue
        rate = ns_per_s / 1e9
        if ns_per_s == 0:
            how = "stands still"
        elif f"{rate:.3g}" != "1":
            how = f"runs {rate:.3g} times as fast" if rate > 0 else "runs backwards"
        else:
            span = span_text(abs(ahead_ns))
            if span == span_text(0):
                continue
            how = f"is {span} {'ahead' if ahead_ns > 0 else 'behind'}"
        by = str(metadata.get("job_clock_answered_by", ""))
        text = f"the job's clock {how}, by {by}; the times here are the kernel's"
        yield ("core", "bent_clocks", int(Severity.ERROR), 1, text)


def _still_recording(run: OpenedRun) -> Iterator[LossRow]:
    files = [process.file for process in run.processes]
    if not any(file.has_ring for file in files):
        return
    live = LiveRings.now()
    count = sum(live.holds(file) for file in files)
    if count:
        text = f"{count} processes are still recording; load again for the rest"
        yield ("format", "still_recording", int(Severity.INFO), count, text)


# A part of a run ---------------------------------------------------------------------------------

#: The fact of the run that holds a window.
WINDOW_FACT = "window"
#: A number of more digits is damage.
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Window:
    """A recording that begins in the middle of a job: the number of its first step, and when each rank began it.

        rows that are there   |-------------------------------------------------------------|
        steps                     K        K+1   ...                     n        n+1
                            ranks begin K at different times; what their loops did before it is of no whole step

    Followed runs have such a beginning, as do the windows that they seal and runs of which only the last steps are
    kept. The fact ``window`` of the run says it: ``K RANK:NS RANK:NS ...``, or ``K-N`` in place of ``K`` where it ends
    with step N, in ns of the monotonic clock.
    """

    first_step: int
    #: Rank -> when its loop began that step, on the common clock.
    begins_ns: Mapping[int, int]
    #: The last step that is whole; None where the recording goes on.
    last_step: int | None = None

    def fact(self, origin_ns: int) -> str:
        """Return the text of the fact; ``origin_ns``: zero of the common clock on the monotonic clock."""
        begins = (f"{rank}:{begin + origin_ns}" for rank, begin in sorted(self.begins_ns.items()))
        steps = str(self.first_step) if self.last_step is None else f"{self.first_step}-{self.last_step}"
        return " ".join([steps, *begins])

    @classmethod
    def read(cls, fact: str, origin: str) -> Window | None:
        """Return the window of a fact; None if it is empty or makes no sense. ``origin``: as for :meth:`fact`."""
        numbers, *begins = fact.split() or [""]
        first, dash, last = numbers.partition("-")
        if not all(text.isdecimal() and len(text) <= _MOST_DIGITS for text in (first, origin, last if dash else "0")):
            return None
        known = {}
        for text in begins:
            rank, _, begin = text.partition(":")
            if rank_number(rank) >= 0 and begin.isdecimal() and len(begin) <= _MOST_DIGITS:
                known[int(rank)] = int(begin) - int(origin)
        return cls(int(first), known, int(last) if dash else None)


def recorded_window(run: OpenedRun) -> Window | None:
    """Return the part of its job that a run or window holds; None if it is one from the start, or that is damaged."""
    fact = str(run.runs[0].run.get(WINDOW_FACT, ""))
    return _joint_window(run) or Window.read(fact, str(run.clocks.origin_monotonic_ns))


def _joint_window(run: OpenedRun) -> Window | None:
    """Return the steps that all hosts have which sealed a part of a window each; None where none did.

    Each says when its ranks began each of its steps, on its own monotonic clock: hosts hold different earliest
    steps.
    """
    clocks, parts = run.clocks.of_boots(), []
    for facts in (facts for raw in run.runs for facts in raw.host_facts):
        clock = clocks.get(str(facts.get("boot_id", "")))
        known = [step for text in facts.get(WINDOW_STEPS, ()) if (step := Window.read(text, "0")) is not None]
        if clock is not None and known:
            parts.append((clock, {step.first_step: step.begins_ns for step in known}))
    if not parts:
        return None
    first = max(min(steps) for _, steps in parts)
    last = min(max(steps) for _, steps in parts)
    begins = {
        rank: clock.common_ns(begin) for clock, steps in parts for rank, begin in steps.get(first, {}).items() if first
    }
    return Window(first, begins, last)


def without_torn_collectives(trace: Trace, window: Window) -> Trace:
    """Leave out collectives that were called before the window and of which no end is there.

    Their ends were let go of with older rows: each thread's rows go in pieces of their own length, and the end is
    written by another thread. Left in, they would look open for good.
    """
    table = trace.collectives
    if not len(table) or not window.begins_ns:
        return trace
    begin = np.full(len(table), min(window.begins_ns.values()))
    for rank, begin_ns in window.begins_ns.items():
        begin[table["rank"] == rank] = begin_ns
    open_ = (table["end_ns"] < 0) & (table["return_ns"] < 0) & (table["device_end_ns"] < 0)
    kept = ~(open_ & (table["call_ns"] < begin))
    if kept.all():
        return trace
    tables = number_collectives(table.take(kept), trace.collective_waits, trace.collective_details)
    if "collective_details" in tables:
        details = tables["collective_details"]
        tables["collective_details"] = details.take(details["collective_key"] >= 0)
    return trace.replace(**tables)
