"""The document of a report: everything that the page says, as plain values for JSON."""

from __future__ import annotations

import os
import shlex
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import stashtrace
from stashtrace.analysis.collectives.collective_waits import collective_rows
from stashtrace.analysis.findings import Summary
from stashtrace.analysis.findings.claim_rows import NOT_SAID
from stashtrace.analysis.findings.rules.ending import ENDINGS
from stashtrace.analysis.findings.rules.losses import losses_of
from stashtrace.analysis.findings.summary_input import RunFacts, gather, ranks_of_hosts
from stashtrace.analysis.links.bandwidth import bandwidth, link_efficiency
from stashtrace.analysis.links.paths import links
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.threads import how_to_get_steps
from stashtrace.errors import ForeignCalibrationWarning, MissingDataError, guarded
from stashtrace.record.directory import read_run_file
from stashtrace.record.gpu.inventory import inventories_of, inventory_lines
from stashtrace.replay.causes import what_to_do_first
from stashtrace.report.budget_groups import budget_groups, rank_columns, ranks_apart
from stashtrace.report.costliest_waits import costliest_waits
from stashtrace.report.page.flame_graphs import costliest_lines, flame_graphs
from stashtrace.report.policy import POLICY
from stashtrace.report.steps_over_time import heat_maps, slow_steps, step_curve
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, run_facts
from stashtrace.summary.causes_block import column_of_cause, details_of, steps_of
from stashtrace.summary.summary_document import document
from stashtrace.summary.summary_text import WARNINGS
from stashtrace.summary.words import findings_of
from stashtrace.text.prose import plural
from stashtrace.text.units import bytes_text, duration_text, ranks_named, ranks_text

T = TypeVar("T")

#: Counts up when a program that reads the document has to change.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands that show a part of the run on the timeline."""

    #: The paths of the run as a person would type them.
    shown: tuple[str, ...]
    #: From where ``--window`` counts.
    origin_ns: int
    #: Which run of a directory that holds several; empty where there was nothing to choose.
    run_id: str = ""

    @property
    def note(self) -> str:
        """What stands for the run in commands about the timeline; empty if it is its one path."""
        if len(self.shown) == 1:
            return ""
        return f"RUN stands for all parts: {shlex.join([*self.shown, *self._choice])}"

    def command(self, *words: str) -> str:
        """Return a command about the run: ``stashtrace WORDS RUN``."""
        return shlex.join(["stashtrace", *words, *self.shown, *self._choice])

    @property
    def _choice(self) -> list[str]:
        return ["--run", self.run_id] if self.run_id else []

    def view(self, begin_ns: int = 0, end_ns: int = 0, ranks: Iterable[int] = ()) -> str:
        """Return the command that shows a window of some ranks; without a window the whole run."""
        # Each part of a page has such a command, so that many paths are named once, by the note.
        path = [self.shown[0], *self._choice] if len(self.shown) == 1 else ["RUN"]
        words = ["stashtrace", "view", *path]
        if end_ns > begin_ns:
            words += ["--window", self.window(begin_ns, end_ns)]
        chosen = sorted(set(ranks))
        if 0 < len(chosen) <= POLICY.ranks_of_command_count:
            words += ["--ranks", ranks_text(chosen)]
        return shlex.join(words) if len(self.shown) == 1 else " ".join(words)

    def window(self, begin_ns: int, end_ns: int) -> str:
        """Return ``A:B`` in seconds, rounded outwards to a hundredth of its length or less."""
        begin, end = begin_ns - self.origin_ns, end_ns - self.origin_ns
        digits = min(max(2 - (len(str(max(end - begin, 1))) - 10), 0), 9)
        unit = 10 ** (9 - digits)
        first, last = max(begin // unit, 0), -(-end // unit)
        return f"{_decimal(first, digits)}:{_decimal(max(last, first + 1), digits)}"


def _decimal(units: int, digits: int) -> str:
    """Return a whole number of units of ``10 ** -digits`` as a decimal number."""
    whole, rest = divmod(units, 10**digits)
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)


def report_facts(
    trace: Trace, shown: Iterable[str] = (), *, run_id: str | None = None, calibration: str | None = None
) -> dict[str, Any]:
    """Collect the document of a report.

    ``trace``: anything that loads. Without steps there is no budget, and ``budget.missing`` says why. ``shown``: the
    paths as a person would type them, for the commands; by default the path of the trace. ``run_id``: the run that was
    chosen in a directory of several, for the commands. ``calibration``: path of what the links can do; by default
    ``calibration.toml`` in the run directory. Returns plain values alone: ``version``, ``path``, ``ending`` (how the
    job failed or stood still), ``verdict`` (one sentence), ``headline`` (sentences), ``not_said`` (sentences about what
    could not be made, by a fault of ours), ``warnings`` (sentences that put all figures in doubt), ``ranks_count``,
    ``do_first`` and ``findings`` (those of :func:`stashtrace.summary.summary_document.document`; a cause also has
    ``column``, of the budget, and ``details``, sentences), ``budget``, ``curve``, ``lines``, ``flames``, ``heat``,
    ``waits``, ``slow``, ``links``, ``losses``, ``machine``. Moments count from the origin that ``--window`` counts
    from; lengths are ns.
    """
    facts = gather(trace)
    tables = Summary.of(facts)
    commands = Commands(tuple(shown) or (trace.path or "RUN",), trace.origin_ns, run_id or "")
    said = document(tables, what_to_do_first(trace), " ".join(map(shlex.quote, commands.shown)))
    findings = said["findings"]
    unsaid = [f["text"] for f in findings if f["kind"] == NOT_SAID]
    made: dict[str, Any] = {
        "stashtrace_report": VERSION,
        "path": " ".join(commands.shown),
        "ending": [{n: f[n] for n in ("text", "evidence_text")} for f in findings if f["kind"] in ENDINGS],
        "verdict": said["headline"],
        "headline": guarded("the ranks and steps", partial(_headline, tables, findings), lambda line: [line]),
        "not_said": unsaid,
        "warnings": [f["text"] for f in findings if f["section"] == "headline" and f["kind"] in WARNINGS],
        "ranks_count": len(trace.ranks),
        "do_first": guarded(
            "details of the causes",
            partial(_with_details, tables, said["do_first"]),
            lambda line: _without(unsaid, line, [{**one, "column": "", "details": []} for one in said["do_first"]]),
        ),
        "findings": findings,
        "budget": guarded("the budget", partial(_budget, facts, tables), partial(_no_budget, facts)),
        "curve": None,
        "lines": None,
        "flames": None,
        "heat": None,
        "waits": None,
        "slow": None,
        "links": guarded(
            "the links", partial(link_facts, trace, calibration), lambda line: _without(unsaid, line, no_links(line))
        ),
        "losses": guarded("what was lost", partial(loss_rows, trace), lambda line: _without(unsaid, line, NO_LOSSES)),
        "machine": guarded("the machine", partial(machine_facts, trace), lambda line: _without(unsaid, line, [])),
    }
    if facts.ranks:
        for name, (what, make) in _parts_of_steps(trace, facts, made["budget"]["groups"]).items():
            made[name] = guarded(what, make, unsaid.append)
    made["commands"] = _commands(made, facts, commands)
    if calibration:
        made["commands"]["links"] += f" --calibration {shlex.quote(calibration)}"
    _count_from(made, trace.origin_ns)
    return made


def _parts_of_steps(
    trace: Trace, facts: RunFacts, groups: list[dict[str, Any]]
) -> dict[str, tuple[str, Callable[[], dict[str, Any] | None]]]:
    """Return the name of each part that needs steps, what it is in words, and what makes it."""
    steps, stalls, spikes = (facts.tables[name] for name in ("steps", "stalls", "spikes"))
    return {
        "curve": ("the step time over the steps", lambda: step_curve(steps, spikes)),
        "lines": ("the costliest lines", lambda: costliest_lines(trace)),
        "flames": ("the flame graphs", lambda: flame_graphs(trace, groups)),
        "heat": ("the heat maps", lambda: heat_maps(stalls, find_steps(trace), ranks_apart(groups))),
        "waits": ("the costliest waits", lambda: costliest_waits(trace, steps, stalls)),
        "slow": ("the slow steps", lambda: slow_steps(trace, steps, spikes)),
    }


def _without(unsaid: list[str], line: str, nothing: T) -> T:
    """Note that a part is not said, and return what stands for it."""
    unsaid.append(line)
    return nothing


def _with_details(tables: Summary, causes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the causes with their column of the budget and what else the summary says of them, every sentence once."""
    found = findings_of(tables.findings, tables.evidence)
    shown: set[str] = set()
    rows = []
    for cause in causes:
        if cause["reason"]:
            rows.append({**cause, "column": "", "details": []})
            continue
        details = [said for said in details_of(cause, found) if said not in shown]
        shown.update(details)
        known = {"what": cause["what"] + steps_of(cause, found), "column": column_of_cause(cause), "details": details}
        rows.append({**cause, **known})
    return rows


def _headline(tables: Summary, findings: list[dict[str, Any]]) -> list[str]:
    """Return the sentences of the summary's first line: ranks and hosts, kinds of steps, warm-up."""
    claims = [f for f in findings_of(tables.findings, tables.evidence) if f.row["section"] == "headline"]
    claims = [f for f in claims if f.row["kind"] not in (*ENDINGS, *WARNINGS)]  # they have separate lines
    texts = {f["finding_id"]: f["text"] for f in findings}
    return [_headline_text(f, texts[f.row["finding_id"]]) for f in claims]


def _headline_text(finding: Any, text: str) -> str:
    """Return a claim of the headline in words; the one about ranks also says on how many hosts they ran."""
    if finding.row["kind"] != "ranks":
        return text
    hosts = finding.evidence[0]["facts"]["items_count"]
    return f"{text} on {hosts} host{plural(hosts)}" if hosts > 0 else text


def _budget(facts: RunFacts, tables: Summary) -> dict[str, Any]:
    groups = budget_groups(tables.budgets)
    known = _no_budget(facts, "" if groups else "no rank has a step, so there is no budget to show")
    hint = "" if groups else how_to_get_steps(facts.trace)
    methods = sorted({rank.method for rank in facts.ranks if rank.method})
    return known | {"hint": hint, "methods": methods, "groups": groups, "by_rank": rank_columns(tables.budgets)}


def _no_budget(facts: RunFacts, line: str) -> dict[str, Any]:
    """Return what stands for a budget that could not be made."""
    counts = {part.step_kind: part.steps_count for part in (facts, *facts.others)}
    known = {"missing": line, "hint": "", "alike_ratio": POLICY.similar_ranks_ratio, "steps_counts": counts}
    return {**known, "warmup_count": facts.warmup_count, "methods": [], "groups": [], "by_rank": []}


def _commands(made: dict[str, Any], facts: RunFacts, commands: Commands) -> dict[str, Any]:
    """Return the command of each part that shows it on the timeline, and those that print its rows."""
    found: dict[str, Any] = {
        "whole": commands.view(),
        "findings": commands.command("summary", "--all"),
        "causes": commands.command("analyze", "causes"),
        "budget": commands.command("analyze", "stalls"),
        "steps": commands.command("analyze", "steps"),
        "lines": commands.command("analyze", "lines"),
        "late": commands.command("analyze", "late"),
        "slow": commands.command("analyze", "spikes"),
        "links": commands.command("analyze", "link_efficiency"),
        "info": commands.command("info"),
        "note": commands.note,
    }
    worst = None
    if facts.ranks:
        worst = guarded("the step that lost most", partial(_worst, facts), made["not_said"].append)
    if worst is not None:
        found["worst"] = commands.view(*worst)
    for part in (made["heat"] or {}).get("kinds", ()):
        part["command"] = commands.view(part["begin_ns"], part["end_ns"])
    for part in (made["waits"] or {}).get("cut_outs", ()):
        ranks = [lane["rank"] for lane in part["lanes"] if lane["rank"] >= 0]
        part["command"] = commands.view(part["begin_ns"], part["end_ns"], ranks)
    for part in (made["slow"] or {}).get("listed", ()):
        part["command"] = commands.view(part["begin_ns"], part["end_ns"])
    links = made["links"]
    if "end_ns" in links:
        links["command"] = commands.view(links["begin_ns"], links["end_ns"])
    return found


def _worst(facts: RunFacts) -> tuple[int, int]:
    """Return begin and end of the counted step with most stalled time over all ranks."""
    steps, stalls = facts.tables["steps"], facts.tables["stalls"]
    lost_to = stalls.take(np.isin(stalls["step"], steps["step"]) & (stalls["kind"] != "compute"))
    lost = np.bincount(lost_to["step"], lost_to["stall_ns"]) if len(lost_to) else np.zeros(1)
    step = int(lost.argmax())
    at = steps["step"] == step
    if not at.any():
        at[:1] = True
    return int(steps["begin_ns"][at].min()), int(steps["end_ns"][at].max())


def _count_from(made: dict[str, Any], origin_ns: int) -> None:
    """Have the moments of all parts count from the origin of ``--window``."""
    parts = [made["links"]]
    for name, key in (("heat", "kinds"), ("waits", "cut_outs"), ("waits", "listed"), ("slow", "listed")):
        parts += (made[name] or {}).get(key, ())
    for part in parts:
        for name in ("begin_ns", "end_ns"):
            if name in part:
                part[name] -= origin_ns


def link_facts(trace: Trace, calibration: str | None = None) -> dict[str, Any]:
    """Return what is known of the links of a run, compared with a calibration or with the one in the run directory.

    Returns ``transfers``: rows of ``link_efficiency`` with ``best_bus_bytes_per_s`` (of ``bandwidth``), those that took
    longest together first; ``rows_count``: how many there are; ``paths``: rows of ``links``; ``paths_missing``: why
    there are none; ``notes``: warnings about the calibration; ``begin_ns``, ``end_ns`` of the longest transfer.
    ``missing`` says why there is nothing.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ForeignCalibrationWarning)
            table = link_efficiency(trace, calibration=calibration)
        best = bandwidth(trace)
    except MissingDataError as error:
        return no_links(str(error), error.hint or "")
    order = np.argsort(-(table["calls_count"] * table["transfer_ns"]), kind="stable")
    rows = list(table.take(order[: POLICY.listed_transfers_count]).rows())
    for row in rows:
        row["best_bus_bytes_per_s"] = _best(best, row)
    times = collective_rows(trace)
    longest = int(times["transfer_ns"].argmax())
    paths, why = _paths(trace)
    return {
        "missing": "" if rows else "no collective with a payload was recorded",
        "hint": "",
        "transfers": rows,
        "rows_count": len(table),
        "paths": paths,
        "paths_missing": why,
        "notes": [str(warning.message) for warning in caught],
        "begin_ns": int(times["begin_ns"][longest]),
        "end_ns": int(times["end_ns"][longest]),
    }


def no_links(why: str, hint: str = "") -> dict[str, Any]:
    """Return what stands for the links where nothing is known of them."""
    return {"missing": why, "hint": hint, "transfers": [], "paths": [], "notes": []}


def _best(table: Table, row: dict[str, Any]) -> float:
    """Return the bus bandwidth of the best call of the same group and operation, of any size; 0 if unknown."""
    same = (table["communicator"] == row["communicator"]) & (table["op"] == row["op"])
    return float(table["best_bus_bytes_per_s"][same].max(initial=0.0))


def _paths(trace: Trace) -> tuple[list[dict[str, Any]], str]:
    try:
        return list(links(trace).head(POLICY.listed_transfers_count).rows()), ""
    except MissingDataError as error:
        return [], f"{error}; {error.hint}" if error.hint else str(error)


#: Facts of processes that people ask for, and what they are called.
_VERSIONS = (
    ("torch_version", "torch"),
    ("cuda_driver_version", "CUDA driver"),
    ("cuda_runtime_version", "CUDA runtime"),
    ("nccl_version", "NCCL"),
    ("torch_threads", "threads of torch"),
    ("omp_num_threads", "OMP_NUM_THREADS"),
    ("cpus_allowed", "CPUs that it may use"),
)


def machine_facts(trace: Trace) -> list[dict[str, str]]:
    """Return rows of ``name`` and ``value``: the command, when it ran, its hosts, devices and versions."""
    facts = run_facts(trace)
    begin, end = (_whole(facts.get(name, "")) for name in ("begin_realtime_ns", "end_realtime_ns"))
    rows = [
        ("command", facts.get("command", "") or _first(trace, "argv")),
        ("begun", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(begin / 1e9)) if begin else ""),
        ("lasted", duration_text(end - begin) if end > begin > 0 else ""),
        ("ended", _ending(facts)),
        ("run", facts.get("run_id", "")),
        ("files", f"of another tool: {facts['imported']}" if "imported" in facts else ""),
        ("hosts", _hosts(trace)),
        ("devices", _devices(trace)),
        *_inventories(trace),
        *((label, "; ".join(_values(trace, key))) for key, label in _VERSIONS),
        ("collectors", facts.get("collectors", "").replace(" ", ", ")),
        ("recorded by", f"stashtrace {facts['stashtrace_version']}" if "stashtrace_version" in facts else ""),
        ("page made by", f"stashtrace {stashtrace.__version__}"),
    ]
    return [{"name": name, "value": value} for name, value in rows if value]


#: Of a run of which nothing lost is known.
NO_LOSSES: dict[str, Any] = {"kinds": [], "more_count": 0}


def loss_rows(trace: Trace) -> dict[str, Any]:
    """Return the kinds of loss of a run: ``kinds`` (counts added up, the largest first) and ``more_count``."""
    kinds: dict[tuple[str, str, str, str], int] = {}
    for row in losses_of(trace):
        key = (row["collector"], row["reason"], row["severity"], row["advice"])
        kinds[key] = kinds.get(key, 0) + int(row["lost_count"])
    names = ("collector", "reason", "severity", "advice")
    listed = sorted(kinds.items(), key=lambda item: -item[1])
    return {
        "kinds": [
            {**dict(zip(names, key, strict=True)), "lost_count": count} for key, count in listed[: POLICY.losses_count]
        ],
        "more_count": max(len(listed) - POLICY.losses_count, 0),
    }


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 20 else 0


def _ending(facts: dict[str, str]) -> str:
    signal, code = facts.get("signal", "0"), facts.get("exit_code", "")
    if signal not in ("", "0", "None"):
        return f"by signal {signal}"
    return f"with exit code {code}" if code not in ("", "None") else ""


def _hosts(trace: Trace) -> str:
    named = [
        f"{host or '(not named)'}: {_ranks(sorted(r for r in ranks if r >= 0))}"
        for host, ranks in ranks_of_hosts(trace).items()
    ]
    more = f"; and {len(named) - POLICY.hosts_count} more" if len(named) > POLICY.hosts_count else ""
    return "; ".join(named[: POLICY.hosts_count]) + more


def _ranks(ranks: list[int]) -> str:
    return ranks_named(ranks) if ranks else "no rank"


def _devices(trace: Trace) -> str:
    """Name the products with their memory and driver, and the ranks that use them."""
    table = trace.devices
    ranks: dict[str, set[int]] = {}
    columns = ("rank", "name_code", "memory_bytes", "driver_code")
    for rank, name, memory, driver in zip(*(table[c].tolist() for c in columns), strict=True):
        parts = [trace.text(name) or "GPU"]
        parts += [bytes_text(memory)] if memory > 0 else []
        parts += [f"driver for CUDA {driver // 1000}.{driver % 1000 // 10}"] if driver > 0 else []
        ranks.setdefault(", ".join(parts), set()).add(rank)
    named = [f"{name} ({_ranks(sorted(r for r in of if r >= 0))})" for name, of in ranks.items()]
    return "; ".join(named)


def _inventories(trace: Trace) -> list[tuple[str, str]]:
    """Return a row for the GPUs of each host, or of several equal hosts, as nvidia-ml-py listed them."""
    hosts: dict[str, list[str]] = {}
    for path in map(Path, filter(None, trace.path.split(os.pathsep))):
        if path.is_dir():
            for host, inventory in inventories_of(path, read_run_file(path)).items():
                hosts.setdefault("; ".join(inventory_lines(inventory)), []).append(host)
    rows = [(f"GPUs of {', '.join(sorted(named)[: POLICY.hosts_count])}", text) for text, named in hosts.items()]
    return rows[: POLICY.hosts_count]


def _values(trace: Trace, key: str) -> list[str]:
    """Return the values that processes give for a fact, without repeats; a long list is cut."""
    table = trace.metadata
    codes = table["value_code"][(table["key_code"] == trace.strings.find(key)) & (table["process_id"] >= 0)]
    values = sorted(filter(None, (trace.text(code) for code in np.unique(codes).tolist())))
    return (
        [*values[: POLICY.values_of_fact_count], f"and {len(values) - POLICY.values_of_fact_count} more"]
        if len(values) > POLICY.values_of_fact_count
        else values
    )


def _first(trace: Trace, key: str) -> str:
    """Return the value of the first process that gives a fact."""
    table = trace.metadata
    rows = np.flatnonzero((table["key_code"] == trace.strings.find(key)) & (table["process_id"] >= 0))
    return trace.text(int(table["value_code"][rows[0]])) if len(rows) else ""
