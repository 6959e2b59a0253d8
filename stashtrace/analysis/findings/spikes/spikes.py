"""spikes: the slow steps of a run, whose time grew in each, what that time went to, and what happened meanwhile.

``slow_steps`` finds them, as it does while a job runs; the whole recording shows more about each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from stashtrace.analysis.devices.device_identity import counted_gpu
from stashtrace.analysis.findings.spikes.policy import POLICY
from stashtrace.analysis.findings.spikes.slow_steps import SlowStep, slow_steps_of, step_times
from stashtrace.analysis.findings.spikes.ways import NOTHING, Cause, Way, most_of, ways
from stashtrace.analysis.intervals import Bools, Int64, TimeSet, window_at
from stashtrace.analysis.stalls.budget import stalls as find_stalls
from stashtrace.analysis.stalls.hidden import hidden as find_hidden
from stashtrace.analysis.stalls.sampled_cpus import HostCounters, growth_between
from stashtrace.analysis.steps.epochs import recorded_samples, step_samples, waits_of_steps
from stashtrace.analysis.steps.steps import counted_steps, host_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.calibration.noise import Floats
from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import BatchPhase, TrackKind
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import ranks_text

SPIKES = schema(
    "spikes",
    "Slow steps: longer than comparable steps by more than these vary; whose time grew, and what happened meanwhile",
    col.number("step", "ordinal"),
    col.word("step_kind", "steps.kind", detail=3),
    col.ns("length_ns", "length of the step, the mean over its ranks"),
    col.ns("usual_ns", "what a step with the same amount of computing usually takes"),
    col.rank("rank", "rank whose time grew most, and made the others wait; -1 if unknown", missing=-1),
    col.word("ranks", "all ranks whose time grew, runs folded", detail=2),
    col.word(
        "kind",
        "kind of time that grew, as in stalls; together: several kinds of that rank; straggler: it was waited for and"
        " nothing is seen to have grown there",
    ),
    col.ns("extra_ns", "by how much it grew on that rank"),
    col.number(
        "grew_step_index", "step in which it grew: this one, or the one before if only this one waited", detail=4
    ),
    col.number("every_count", "steps until that kind makes one slow again, and again; else 0", detail=2),
    col.word(
        "cause_kind",
        "what the extra time goes to: gc, checkpoint, file, annotation, a kind of wait, phase, worker; else empty",
    ),
    col.word("cause_name", "file, annotation, phase, wait or number of the worker"),
    col.ns("cause_ns", "how much more of it there is, -1 if unknown", missing=-1, detail=2),
    col.identity("worker_id", "of a wait for a batch: worker that made it, -1 if none", missing=-1, detail=2),
    col.word("beside", "what of the columns behind it was clearly more than usual in the step, or slower"),
    col.ns("gc_ns", "garbage collection on the step thread of that rank, -1 if unknown", missing=-1, detail=5),
    col.ns("background_save_ns", "a checkpoint was written by another thread, -1 if unknown", missing=-1, detail=5),
    col.ns("cpu_contention_ns", "the step thread had no CPU, -1 if unknown", missing=-1, detail=5),
    col.ns("evaluation_ns", "another rank was in validation or inference", detail=5),
    col.ns("epoch_begin_ns", "a loader ended or began again", detail=5),
    col.real("steal_ratio", "CPU time of the host that its hypervisor took, -1 if unknown", missing=-1, detail=5),
    col.real("other_cpus_count", "CPUs that programs outside the job used, -1 if unknown", missing=-1, detail=5),
    col.real(
        "io_pressure_ratio", "time in which a task of the host waited for I/O, -1 if unknown", missing=-1, detail=5
    ),
    col.real(
        "memory_pressure_ratio",
        "time in which a task of the host waited for memory, as for its page cache, -1 if unknown",
        missing=-1,
        detail=5,
    ),
    col.real(
        "sm_clock_hz", "mean clock of the rank's device, the slowest of several, -1 if unknown", missing=-1, detail=5
    ),
)
_FIGURES = SPIKES.names[SPIKES.names.index("gc_ns") :]
_SM_CLOCK = "sm_clock_hz"
_DEVICE = re.compile(rf"gpu_{_SM_CLOCK}\.(.+)")


def spikes(trace: Trace) -> Table:
    """Find the slow steps of a run, and what made them slow.

    A step is slow if it is longer than comparable steps (of one kind, with or without a checkpoint, and with the same
    amount of computing), by more than these vary by chance: at most once in 10,000 steps of a balanced job. Each step
    is compared with earlier or with later ones, whichever are more; while a job runs, with earlier ones alone. The
    warm-up is not judged. Computing that takes longer is slow only where it hardly varies, where batches of about the
    same size show how long it takes, or far beyond anything seen before: else it may be the data. Columns: table
    ``spikes`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    table = find_steps(trace)
    if not len(table):
        raise MissingDataError("no rank has a step")
    return spikes_of(trace, counted_steps(table), find_stalls(trace, warmup=True), find_hidden(trace))


def spikes_of(trace: Trace, counted: Table, stalls: Table, hidden: Table) -> Table:
    """Make the table ``spikes`` of counted steps of any kinds, and the stalls and hidden work of all steps."""
    found = slow_steps_of(step_times(counted, stalls), samples_of(trace, counted))
    return described(trace, counted, hidden, found)


def described(trace: Trace, counted: Table, hidden: Table, found: Sequence[SlowStep]) -> Table:
    """Make a row of ``spikes`` for each slow step: what its time went to, and what happened meanwhile.

    ``counted``: steps to compare with, the slow ones among them. ``hidden``: hidden work of all steps.
    """
    if not found:
        return Table.empty(SPIKES)
    slow = np.array([number for step in found for number in (step.step, step.grew_step_index)])
    causes, figures = _causes(trace, counted, found), _figures(trace, counted, hidden, found, slow)
    rows = [
        (
            step.step,
            step.step_kind,
            round(step.length_ns),
            round(step.usual_ns),
            step.rank,
            ranks_text(list(step.ranks)),
            step.kind,
            round(step.extra_ns),
            step.grew_step_index,
            step.every_count,
            *causes[place][:2],
            round(causes[place][2]),
            _worker(trace, counted, step),
            _named(figures[place], step),
            *(round(figure) if name.endswith("_ns") else figure for name, (figure, _) in figures[place].items()),
        )
        for place, step in enumerate(found)
    ]
    return Table.from_rows(SPIKES, rows)


def samples_of(trace: Trace, counted: Table) -> Floats:
    """Return the samples of the batches of each row of ``steps``, 0 where its loaders do not say."""
    by_loader, out = recorded_samples(trace), np.zeros(len(counted))
    if not by_loader:
        return out
    waits = waits_of_steps(trace.batches, counted)
    for rank, of_rank in GroupBy(counted["rank"]).items():
        samples, _ = step_samples(counted.take(of_rank), waits.take(waits["rank"] == rank), by_loader)
        if len(samples):
            out[of_rank] = samples
    return out


def _causes(trace: Trace, counted: Table, found: Sequence[SlowStep]) -> list[Cause]:
    """Return what the extra time of each slow step goes to."""
    causes, known = [NOTHING] * len(found), [place for place, step in enumerate(found) if step.rank >= 0]
    slow = np.array([number for step in found for number in (step.step, step.grew_step_index)])
    groups: dict[tuple[int, str, str], list[int]] = {}
    for place in known:
        groups.setdefault((found[place].rank, found[place].kind, found[place].step_kind), []).append(place)
    for (rank, kind, step_kind), places in groups.items():
        of_kind = counted.take((counted["rank"] == rank) & (counted["kind"] == step_kind)).sort_by("step")
        grew = np.array([found[place].grew_step_index for place in places])
        usual = np.flatnonzero(~np.isin(of_kind["step"], slow))
        usual = usual[np.unique(np.linspace(0, len(usual) - 1, min(len(usual), POLICY.compared_steps)).astype(int))]
        kept = np.union1d(usual, np.flatnonzero(np.isin(of_kind["step"], grew)))
        others, of_kind = np.isin(kept, usual), of_kind.take(kept)
        given: list[Way] = list(ways(trace, rank, kind, of_kind)) if others.any() else []
        for place in places:
            this = of_kind["step"] == found[place].grew_step_index
            if this.any():
                causes[place] = most_of(given, (this, others), found[place].extra_ns)
    return causes


def _worker(trace: Trace, counted: Table, step: SlowStep) -> int:
    """Return the worker that made the batch for which a slow step waited longest; -1 if that is not what grew."""
    if COLUMN_OF.get(step.kind) != "data":
        return -1
    steps = counted.take((counted["rank"] == step.rank) & (counted["step"] == step.grew_step_index))
    batches = trace.batches.take(trace.batches["rank"] == step.rank)
    waits = waits_of_steps(batches, steps)
    waits = waits.take(window_at(waits["begin_ns"], steps["begin_ns"], steps["end_ns"]) >= 0)
    if not len(waits):
        return -1
    longest = int((waits["end_ns"] - waits["begin_ns"]).argmax())
    made = batches["phase_code"] == BatchPhase.FETCH
    for name in ("loader_id", "batch_index"):
        made &= batches[name] == waits[name][longest]
    return int(batches["worker_id"][made][0]) if made.any() else -1


def _figures(
    trace: Trace, counted: Table, hidden: Table, found: Sequence[SlowStep], slow: Int64
) -> list[dict[str, tuple[float, float]]]:
    """Return the figures of the host in each slow step, and what they usually are in steps of its kind on that rank.

    Of a step that waited for the end of the one before, they are those of that one.
    """
    known, host = _Figures(trace, host_steps(trace), hidden), host_steps(trace)
    out: list[dict[str, tuple[float, float]]] = []
    of_rank: dict[tuple[int, str], tuple[Table, dict[str, Floats]]] = {}
    for step in found:
        rank = step.rank if step.rank >= 0 else step.ranks[0]
        if (rank, step.step_kind) not in of_rank:
            of_kind = (host["rank"] == rank) & (host["kind"] == step.step_kind)
            steps = host.take(of_kind & np.isin(host["step"], counted["step"])).sort_by("step")
            of_rank[rank, step.step_kind] = steps, known.figures(rank, steps) if len(steps) else {}
        steps, figures = of_rank[rank, step.step_kind]
        grew = step.grew_step_index if step.grew_step_index in steps["step"] else step.step
        if grew not in steps["step"]:  # a rank of another host, which knows more of it
            out.append(dict.fromkeys(_FIGURES, (-1.0, -1.0)))
            continue
        at, others = int(np.searchsorted(steps["step"], grew)), ~np.isin(steps["step"], slow)
        out.append({name: (float(figures[name][at]), _usual(figures[name][others])) for name in _FIGURES})
    return out


def _usual(figure: Floats) -> float:
    """Return what a figure usually is; -1 if that is unknown."""
    known = figure[figure >= 0]
    return float(np.median(known)) if len(known) else -1.0


def _named(figures: dict[str, tuple[float, float]], step: SlowStep) -> str:
    """Name what is clearly more than usual in a slow step, or slower."""
    longer, names = step.length_ns - step.usual_ns, []
    for name, (figure, usual) in figures.items():
        if usual < 0:
            continue
        if name == _SM_CLOCK:
            stands_out = 0 <= figure < POLICY.slower_clock_ratio * usual
        else:
            stands_out = figure - usual >= POLICY.more.get(name, POLICY.stands_out_ratio * longer)
        if stands_out:
            names.append(name.rpartition("_")[0])
    return ", ".join(names)


class _Figures:
    """What the hosts, devices and loaders of a run did, by step of a rank."""

    def __init__(self, trace: Trace, steps: Table, hidden: Table) -> None:
        """``steps``: all steps of all ranks. ``hidden``: the analysis of that name."""
        self._trace, self._hidden = trace, hidden
        self._quiet = steps.take(np.isin(steps["kind"], QUIET_KINDS))
        self._counters = HostCounters(trace)
        self._clocks = _clocks(trace)

    def figures(self, rank: int, steps: Table) -> dict[str, Floats]:
        """Return each figure of the steps of a rank, in their order; -1 where it is unknown.

        ``steps``: rows of ``steps`` of one rank.
        """
        begin, end, process = steps["begin_ns"], steps["end_ns"], int(steps["process_id"][0])
        hidden = self._hidden.take(self._hidden["rank"] == rank)
        row = GroupBy(hidden["step"]).row_of(steps["step"])

        def of_step(name: str) -> Floats:
            return np.append(hidden[name], -1.0)[row]

        others = self._quiet.take(self._quiet["rank"] != rank)
        host = self._counters.host_of(process)
        return {
            "gc_ns": of_step("gc_ns"),
            "background_save_ns": of_step("hidden_checkpoint_ns"),
            "cpu_contention_ns": of_step("cpu_contention_ns"),
            "evaluation_ns": TimeSet.of_rows(others).within(begin, end).astype(np.float64),
            "epoch_begin_ns": self._epochs(rank).within(begin, end).astype(np.float64),
            "steal_ratio": of_step("steal_ratio"),
            "other_cpus_count": self._other_cpus(host, begin, end),
            "io_pressure_ratio": self._growth_ratio(host, "host_psi_io_some_ns_total", begin, end),
            "memory_pressure_ratio": self._growth_ratio(host, "host_psi_memory_some_ns_total", begin, end),
            "sm_clock_hz": self._clock(process, begin, end),
        }

    def _epochs(self, rank: int) -> TimeSet:
        """Return when a rank's loaders began again: workers that ended, and waits for first batches."""
        batches = self._trace.batches.take(self._trace.batches["rank"] == rank)
        waits = (batches["phase_code"] == BatchPhase.WAIT) & (batches["batch_index"] <= 0)
        return TimeSet.of_rows(batches, waits | (batches["phase_code"] == BatchPhase.WORKERS_END))

    def _growth_ratio(self, host: int, name: str, begin: Int64, end: Int64) -> Floats:
        """Return by how much a counter of time grows, as a part of the length of each window."""
        series = self._counters.of_host(host, name)
        if series is None:
            return np.full(len(begin), -1.0)
        ratio = growth_between(*series, begin, end) / np.maximum(end - begin, 1)
        return np.where(_covered(series[0], begin, end), ratio, -1.0)

    def _other_cpus(self, host: int, begin: Int64, end: Int64) -> Floats:
        """Return how many CPUs of a host the processes outside the job use in each window."""
        user, system = (self._counters.of_host(host, f"host_{part}_ns_total") for part in ("user", "system"))
        if user is None or system is None:
            return np.full(len(begin), -1.0)
        used = growth_between(*user, begin, end) + growth_between(*system, begin, end)
        for name in ("process_user_ns_total", "process_system_ns_total"):
            for of, at, values in self._counters.samples(name):
                used = used - growth_between(at, values, begin, end) if of == host else used
        ratio = np.maximum(used, 0.0) / np.maximum(end - begin, 1)
        return np.where(_covered(user[0], begin, end), ratio, -1.0)

    def _clock(self, process: int, begin: Int64, end: Int64) -> Floats:
        """Return the lowest of the mean clocks of the devices of a process in each window."""
        clocks = [
            _mean(*self._clocks[uuid], begin, end) for uuid in _gpus(self._trace, process) if uuid in self._clocks
        ]
        return np.min(clocks, axis=0) if clocks else np.full(len(begin), -1.0)


def _covered(at: Int64, begin: Int64, end: Int64) -> Bools:
    """Return which windows lie between samples."""
    return np.asarray((begin >= at[0]) & (end <= at[-1]))


def _mean(at: Int64, values: Floats, begin: Int64, end: Int64) -> Floats:
    """Return the mean of a quantity in windows, linear between samples; -1 outside of them."""
    base = int(at[0])
    whole = np.concatenate([[0.0], np.cumsum(np.diff(at - base) * (values[1:] + values[:-1]) / 2)])
    mean = growth_between(at, whole, begin, end) / np.maximum(end - begin, 1)
    return np.where(_covered(at, begin, end), mean, -1.0)


def _clocks(trace: Trace) -> dict[str, tuple[Int64, Floats]]:
    tracks, by_track = trace.tracks, RowsBy(trace.counters["track_id"])
    found = {}
    for row in tracks.take(tracks["kind_code"] == TrackKind.COUNTER).rows():
        device = _DEVICE.fullmatch(trace.text(row["name_code"]))
        rows = by_track.rows(row["track_id"])
        if device and len(rows) > 1:
            found[device[1]] = trace.counters["ts_ns"][rows], trace.counters["value"][rows]
    return found


def _gpus(trace: Trace, process: int) -> Iterable[str]:
    return {counted_gpu(trace, row) for row in trace.devices.rows() if row["process_id"] == process}
