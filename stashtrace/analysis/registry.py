"""The analyses by name. Adding one: its file, its test, and one line in ``ANALYSES``; CLI and docs follow.

Other packages add theirs by entry points, which are read only for a name that is not here and for the list of all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, overload

from stashtrace.registry import Plugin, Registry, require_options
from stashtrace.registry import unknown_options as unknown_options
from stashtrace.schema.notebook import Words
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: (name, "module:function", one-line help).
ANALYSES: tuple[tuple[str, str, str], ...] = tuple(
    (name, f"stashtrace.{function}", words)
    for name, function, words in (
        ("steps", "analysis.steps.steps:steps", "begin and end of every step of every rank"),
        (
            "step_kinds",
            "analysis.steps.step_time:step_kinds",
            "training, validation and other steps: how many, how long",
        ),
        ("stalls", "analysis.stalls.budget:stalls", "where each nanosecond of each step of each rank went"),
        ("over_time", "analysis.findings.over_time.step_changes:over_time", "shifts, drifts and periods of the step"),
        ("spikes", "analysis.findings.spikes.spikes:spikes", "slow steps: whose time grew, and what happened in them"),
        ("breakdown", "analysis.devices.breakdown:breakdown", "what each GPU did: compute, communication, copies"),
        ("idle", "analysis.devices.breakdown:idle", "why GPUs idled: input, sync, host, launch, waits"),
        ("kernels", "analysis.devices.kernels:kernel_times", "what ran on the GPUs, by name"),
        ("launches", "analysis.devices.launches:launches", "how far ahead the host was: latency and queues"),
        ("copies", "analysis.devices.breakdown:copies", "copies by direction: bytes, rate, pinned or not"),
        ("lines", "analysis.lines.lines:lines", "lines of your code in which each kind of time was spent"),
        (
            "lines_between_ranks",
            "analysis.lines.between_ranks:lines_between_ranks",
            "functions that take longer on one rank than on others",
        ),
        ("stacks", "analysis.steps.python_functions:stacks", "Python functions of deeper steps, by py-spy"),
        ("bandwidth", "analysis.links.bandwidth:bandwidth", "algbw and busbw of collectives by size"),
        ("hidden", "analysis.stalls.hidden:hidden", "hidden work, CPU contention and collection per step"),
        (
            "collectives",
            "analysis.collectives.collective_waits:collectives",
            "every collective: waiting, then transfer",
        ),
        ("link_efficiency", "analysis.links.bandwidth:link_efficiency", "transfers, and what the link can do"),
        ("stragglers", "analysis.stragglers.stragglers:stragglers", "which rank is late, and what it costs the others"),
        ("straggler_causes", "analysis.stalls.budget:straggler_causes", "whom each step of each rank waited for"),
        (
            "straggler_roots",
            "analysis.stragglers.follow_waits:straggler_roots",
            "rank at which a chain of waits ends, by rank and step",
        ),
        ("late", "analysis.stragglers.late:late", "costliest waits in collectives, who was late, and why"),
        ("late_ranks", "analysis.stragglers.late:late_ranks", "who is late again and again, per process group"),
        ("pipeline", "analysis.stragglers.pipeline:pipeline", "bubbles of pipeline stages, per step"),
        ("slowdown", "replay.slowdown:slowdown", "what it costs that ranks differ, by cause"),
        ("causes", "replay.causes.causes_table:causes", "what makes steps long, by what its removal saves"),
        (
            "critical_path",
            "analysis.graph.critical_path_tables:critical_path",
            "what the length of the run was made of, over all ranks",
        ),
        (
            "critical_share",
            "analysis.graph.critical_path_tables:critical_share",
            "share of that path by rank, kind and function",
        ),
        ("slack", "analysis.graph.critical_path_tables:slack", "by how much each piece of work could end later"),
        (
            "transfer_certainty",
            "analysis.links.bandwidth:transfer_certainty",
            "how much link time came after every rank had arrived",
        ),
        ("overlap_advice", "replay.advice:overlap_advice", "what overlapping or splitting collectives saves"),
        ("links", "analysis.links.paths:links", "which way collectives went: NVLink, PCIe or a network"),
        ("io", "analysis.io.files:io", "calls, bytes and blocked time of each file"),
        ("io_directories", "analysis.io.files:io_directories", "the same of each directory"),
        ("io_patterns", "analysis.io.files:io_patterns", "order, sizes and times of reads, in Darshan's counters"),
        ("io_sizes", "analysis.io.files:io_sizes", "how many calls moved how much, in Darshan's bins"),
        ("io_bandwidth", "analysis.io.io_bandwidth:io_bandwidth", "bytes by time as Darshan defines it"),
        ("io_advice", "analysis.io.files:io_advice", "what to change about reading, in sentences"),
        ("io_staging", "analysis.io.staging:io_staging", "which files to put on a fast tier"),
        ("io_cache", "analysis.io.cache:io_cache", "what a cache of each size would serve"),
        ("io_reuse", "analysis.io.cache:io_reuse", "how much else is read between two reads of the same"),
        ("loader_rates", "analysis.io.loader_rates:loader_rates", "what the speed of loading depends on"),
        (
            "operators",
            "analysis.collectives.operators:operators",
            "calls and bytes of each operator of execution traces",
        ),
        ("findings", "analysis.findings:findings", "what the summary claims, one row per claim"),
        ("finding_evidence", "analysis.findings:finding_evidence", "what each of these claims rests on"),
        ("budgets", "analysis.findings:budgets", "the bars of the summary: time of each rank by column"),
        ("start", "analysis.findings.rules.start:start", "what each rank did before its first counted step"),
        (
            "killed",
            "analysis.findings.ending.endings:killed",
            "which ranks and workers were killed, and by which signal",
        ),
        ("endings", "analysis.findings.ending.endings:endings", "how ranks and workers ended: exceptions, exit codes"),
        ("hang", "analysis.findings.ending.hang_table:hang", "which rank others wait for, since when, what it does"),
        ("agreement", "analysis.stalls.hidden:agreement", "stalls by brackets against stalls by kernels"),
        ("stall_intervals", "analysis.stalls.budget:stall_intervals", "the same attribution as intervals"),
    )
)
#: What a person asks, and the analyses that answer it; each stands in one place.
QUESTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What slows the run down?", ("findings", "finding_evidence", "budgets", "killed", "endings", "hang", "causes")),
    (
        "Where does the time of a step go?",
        (
            "steps",
            "step_kinds",
            "start",
            "over_time",
            "spikes",
            "stalls",
            "stall_intervals",
            "hidden",
            "agreement",
            "lines",
            "lines_between_ranks",
            "stacks",
        ),
    ),
    ("What sets the length of the run?", ("critical_path", "critical_share", "slack")),
    (
        "Who waits for whom?",
        ("stragglers", "straggler_causes", "straggler_roots", "late", "late_ranks", "pipeline", "slowdown"),
    ),
    ("What do the GPUs do?", ("breakdown", "idle", "kernels", "launches", "copies")),
    (
        "How fast is communication?",
        ("collectives", "bandwidth", "link_efficiency", "transfer_certainty", "links", "operators", "overlap_advice"),
    ),
    (
        "How are files read, and what would help?",
        (
            "io",
            "io_directories",
            "io_patterns",
            "io_sizes",
            "io_bandwidth",
            "io_advice",
            "io_staging",
            "io_cache",
            "io_reuse",
            "loader_rates",
        ),
    ),
)
#: Analyses that say nothing of a run without kernels, copies or brackets of a GPU.
NEEDS_GPU = frozenset({"breakdown", "idle", "kernels", "launches", "copies", "agreement"})

#: Not a table but the words that `stashtrace run` ends with; no package may call its analysis so.
SUMMARY = "summary"


@functools.cache
def _of_plugin(plugin: Plugin) -> Callable[..., Table]:
    """Function of another package's analysis, held to what ours keep: it gives a Table or raises a StashtraceError."""
    function = plugin.function(Table, called="stashtrace.Table")

    @functools.wraps(function)
    def with_texts(trace: Trace, **options: Any) -> Table:
        table = function(trace, **options)
        for column in table.schema.columns:
            codes = table[column.name]
            if column.is_text and len(codes) and not 0 <= codes.min() <= codes.max() < len(trace.strings):
                raise plugin.error(f"returned codes in {column.name!r} that stand for no text of the trace")
        return table

    return with_texts


_REGISTRY: Registry[Callable[..., Table]] = Registry("analysis", ANALYSES, _of_plugin, reserved=(SUMMARY,))
find, plugins = _REGISTRY.find, _REGISTRY.plugins


@overload
def analyze(trace: Trace, name: Literal["summary"]) -> Words: ...  # type: ignore[overload-overlap]
@overload
def analyze(trace: Trace, name: str, **options: Any) -> Table: ...
def analyze(trace: Trace, name: str, **options: Any) -> Table | Words:
    """Run an analysis by name.

    Parameters
    ----------
    trace : Trace
        What ``stashtrace.load`` returned.
    name : str
        One of ``ANALYSES``; or ``summary`` for the words of :meth:`Trace.summary`, whose tables are ``findings``,
        ``finding_evidence`` and ``budgets``.
    **options
        Keyword arguments of that analysis, e.g. ``by="rank"`` of ``stalls``.

    Raises
    ------
    UsageError
        If there is no analysis of that name.
    PluginError
        If it is of another package, and cannot be loaded, fails, or returns no Table.

    Examples
    --------
    >>> from stashtrace.schema.strings import StringPool
    >>> analyze(Trace(StringPool(), {}), "astrology")
    Traceback (most recent call last):
    stashtrace.errors.UsageError: no analysis named 'astrology'
    """
    if name == SUMMARY:
        require_options(f"analysis {name!r}", trace.summary, options)
        return trace.summary()
    return find(name)(trace, **options)
