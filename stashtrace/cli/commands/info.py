"""``stashtrace info PATH``: what a run, or a set of files of other tools, holds."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli.parsing import NEWEST, RUN_OR_FILES, TEXT_FORMATS, Parser, existing_run, newest_run
from stashtrace.cli.print_results import print_answer
from stashtrace.errors import MissingDataError
from stashtrace.loading.temporary_archives import named
from stashtrace.record.gpu.inventory import inventories_of, inventory_lines
from stashtrace.record.launchers import launchers
from stashtrace.schema.kinds import DeviceClock
from stashtrace.text.units import bytes_text, duration_text, percent_text, range_text, ranks_named, ranks_text
from stashtrace.text.visible import visible_line

if TYPE_CHECKING:
    from stashtrace.schema.trace import Trace

#: Metadata of the load as a whole that stand on separate lines.
_NOT_FACTS = ("origin_monotonic_ns", "origin_realtime_ns", "imported", "numbered_steps")
#: Tables that are not records.
_NOT_RECORDS = ("processes", "tracks", "losses", "alignment", "metadata", "numbered_steps", "matched_collectives")
_FACTS_AT_MOST = 12
_ALIKE_AT_MOST = 3
#: Part of the cost of tracing -> what it grows with; a short job shows more of its start.
_GROWS_WITH = {
    "probes": "with steps",
    "recorder threads": "with time",
    "hooks": "with calls on files and waits, most of them at the start",
}


def parser() -> Parser:
    """Return the parser of ``stashtrace info``."""
    parser = Parser("info", "Show what a run holds: ranks, steps, devices, records, and what was lost.")
    text = f"{RUN_OR_FILES}, or a .stash file (default: {NEWEST})"
    parser.add_argument("path", metavar="PATH", nargs="?", help=text)
    parser.add_format(TEXT_FORMATS)
    parser.add_run()
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the facts."""
    arguments = parser().read(argv)
    path = str(existing_run(arguments.path or newest_run()))

    from stashtrace.loading.load import is_foreign
    from stashtrace.store.layout import is_store

    if is_foreign(path) or is_store(path):
        facts = describe_files(path)
        lines = _files_lines(facts)
    else:
        facts = describe(path, arguments.run)
        lines = _run_lines(facts)
    print_answer(arguments.format, [visible_line(line) for line in lines], facts)
    return 0


def describe(path: str, run_id: str | None = None) -> dict[str, Any]:
    """Return facts about a run that can be written as JSON.

    ``own_cost`` is what the tracing cost and of what, with bounds; empty if not measured. ``ranks`` is the list of
    global ranks, ``steps`` the number of steps that the ranks have in common order, ``devices`` those of each process
    with the error of their clocks, ``gpu_inventories`` what each host with GPUs recorded of them (see
    :mod:`stashtrace.record.gpu.inventory`), ``records`` rows per collector, ``losses`` a list of rows of the losses
    table.
    """
    from stashtrace.analysis.findings.rules.losses import losses_of
    from stashtrace.analysis.findings.summary_input import ranks_of_hosts
    from stashtrace.format.reader import open_run
    from stashtrace.loading.load import load_trace

    raw = open_run(path, run_id=run_id)
    records: Counter[str] = Counter()
    for process in raw.processes:
        collectors = {layout.name: layout.collector for layout in process.layouts.values()}
        for name, count in process.row_counts().items():
            records[collectors.get(name, "unknown")] += count
    trace = load_trace(path, run_id=run_id)
    run = raw.run
    begin, end = (run.get(name) for name in ("begin_monotonic_ns", "end_monotonic_ns"))
    return {
        "path": named(path),
        "run_id": raw.run_id,
        "command": run.get("command", []),
        "begin_realtime_ns": run.get("begin_realtime_ns"),
        "duration_ns": None if begin is None or end is None else end - begin,
        "exit_code": run.get("exit_code"),
        "hosts": sorted({trace.text(c) for c in trace.processes["host_code"]}),
        "ranks_of_hosts": ranks_of_hosts(trace),
        "launchers": [_launcher(part) for part in run.get("parts") or launchers(Path(path)) if isinstance(part, dict)],
        "processes": len(trace.processes),
        "merged": all(p.head.merged for p in raw.processes),
        "size_bytes": sum(p.size_bytes for p in raw.processes),
        **_ranks(trace),
        "steps": len(_step_numbers(trace)),
        "devices": _run_devices(trace),
        "gpu_inventories": inventories_of(Path(path), run),
        "records": dict(sorted(records.items())),
        "own_cost": _own_cost(trace),
        "losses": losses_of(trace),
    }


def describe_files(path: str) -> dict[str, Any]:
    """Return facts about files of other tools, or a store, that can be written as JSON.

    ``importers`` says how many files of which format were read, ``records`` counts rows by table, ``facts`` is what the
    files say of themselves, once where all processes say the same.
    """
    from stashtrace.analysis.findings.rules.losses import losses_of
    from stashtrace.cli.find_runs import read_runs
    from stashtrace.schema.events import TABLES
    from stashtrace.store.layout import is_store

    trace = read_runs(path, quiet=True)  # the losses are part of the answer
    facts = _metadata(trace)
    begin = facts.get("origin_realtime_ns", "")
    return {
        "path": named(path),
        "importers": "store of " * is_store(path) + facts.get("imported", "a run" if is_store(path) else ""),
        "size_bytes": _size_bytes(path),
        "begin_realtime_ns": int(begin) if begin.isdecimal() and len(begin) < 20 else None,
        "duration_ns": int(trace.processes["end_ns"].max()) if len(trace.processes) else 0,
        "hosts": sorted({trace.text(c) for c in trace.processes["host_code"]} - {""}),
        "processes": len(trace.processes),
        **_ranks(trace),
        "steps": _step_numbers(trace),
        "devices": _products(trace),
        "facts": {key: value for key, value in facts.items() if key not in _NOT_FACTS},
        "records": {
            name: len(trace.table(name)) for name in TABLES if name not in _NOT_RECORDS and len(trace.table(name))
        },
        "losses": losses_of(trace),
    }


def _own_cost(trace: Trace) -> dict[str, Any]:
    from stashtrace.analysis.findings.rules.trust import own_cost

    cost = own_cost(trace)
    if cost.used_ns <= 0:
        return {}
    parts = {name: {"least_ns": least, "most_ns": most} for name, (least, most) in cost.parts.items()}
    return {"used_ns": cost.used_ns, "least_ratio": cost.least_ratio, "most_ratio": cost.most_ratio, "parts": parts}


def _ranks(trace: Trace) -> dict[str, list[int]]:
    ranks = [int(r) for r in trace.ranks]
    world = max((int(w) for w in trace.processes["world_size"]), default=-1)
    return {"ranks": ranks, "missing_ranks": [r for r in range(max(world, 0)) if r not in ranks]}


def _step_numbers(trace: Trace) -> list[int]:
    """Return the numbers of the steps that any rank made; empty if no step can be seen."""
    from stashtrace.analysis.registry import analyze

    try:
        return sorted({int(s) for s in analyze(trace, "steps")["step"] if s >= 0})
    except MissingDataError:
        return []


def _launcher(part: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that differ between the launchers of a job."""
    names = ("host", "run_id", "begin_realtime_ns", "end_realtime_ns", "exit_code", "signal")
    return {name: part.get(name) for name in names}


def _run_devices(trace: Trace) -> list[dict[str, Any]]:
    """Return each device of each process, with the errors of its clocks."""
    from stashtrace.analysis.devices.device_identity import gpu_jobs

    jobs = {(one.process_id, one.device_index): one.site_job for one in gpu_jobs(trace)}
    clocks: dict[tuple[int, int], dict[str, dict[str, int]]] = {}
    for row in trace.device_clocks.rows():
        own = clocks.setdefault((row["process_id"], row["device_index"]), {})
        name = DeviceClock(row["clock_code"]).name.lower()
        own[name] = {key: row[key] for key in ("anchors_count", "error_ns", "drift_ppb")}
    return [
        {
            "rank": row["rank"],
            "process_id": row["process_id"],
            "device_index": row["device_index"],
            "name": trace.text(row["name_code"]),
            "uuid": trace.text(row["uuid_code"]),
            "site_job": jobs.get((row["process_id"], row["device_index"]), ""),
            "bus": trace.text(row["bus_code"]),
            "memory_bytes": row["memory_bytes"],
            "driver": row["driver_code"],
            "clocks": clocks.get((row["process_id"], row["device_index"]), {}),
        }
        for row in trace.devices.rows()
    ]


def _products(trace: Trace) -> dict[str, str]:
    """Return for each product which ranks use a device of it."""
    ranks: dict[str, set[int]] = {}
    for row in trace.devices.rows():
        ranks.setdefault(trace.text(row["name_code"]) or "GPU", set()).add(row["rank"])
    return {name: ranks_named(sorted(of_product)) for name, of_product in ranks.items()}


def _metadata(trace: Trace) -> dict[str, str]:
    """Return the metadata of the load; those of processes once if all agree, else with the ranks that they are of."""
    values: dict[str, dict[str, list[int]]] = {}
    for row in trace.metadata.rows():
        key, value = trace.text(row["key_code"]), trace.text(row["value_code"])
        values.setdefault(key, {}).setdefault(value, []).append(row["process_id"])
    rank_of = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    texts: dict[str, list[str]] = {}
    for key, by_value in values.items():
        for value, processes in by_value.items():
            whose = _whose([rank_of.get(p, -1) for p in processes if p >= 0]) if len(by_value) > 1 else ""
            texts.setdefault(f"{key} of {whose}" if whose else key, []).append(value)
    return {key: "; ".join(listed) for key, listed in texts.items()}


def _whose(ranks: list[int]) -> str:
    """Name the ranks, and count the processes without one."""
    parts = [ranks_text(known)] if (known := sorted({r for r in ranks if r >= 0})) else []
    if others := ranks.count(-1):
        parts.append(f"{others} process{'es' if others > 1 else ''} without a rank")
    return " and ".join(parts)


def _size_bytes(path: str) -> int:
    place = Path(path)
    files = [place] if place.is_file() else [p for p in place.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files)


def _run_lines(facts: dict[str, Any]) -> list[str]:
    length_ns, code = facts["duration_ns"], facts["exit_code"]
    after = f"after {duration_text(length_ns)}, " if length_ns is not None else ""
    ending = f"{after}exit code {code}" if code is not None else "not yet, or its launcher was killed"
    merged = "" if facts["merged"] else ", not merged"
    lines = _align(
        ("run", f"{facts['run_id'] or '-'}  {facts['path']}"),
        ("command", shlex.join(facts["command"]).replace("\n", " ") or "not known"),
        ("begun", _moment(facts["begin_realtime_ns"])),
        ("ended", ending),
        ("hosts", ", ".join(_host(host, facts["ranks_of_hosts"]) for host in facts["hosts"])),
        ("processes", f"{facts['processes']}, {bytes_text(facts['size_bytes'])}{merged}"),
        ("ranks", _ranks_line(facts)),
        ("steps", str(facts["steps"])),
        *_own_cost_rows(facts["own_cost"]),
    )
    if len(facts["launchers"]) > 1:
        lines += ["launchers"] + [_launcher_line(launcher) for launcher in facts["launchers"]]
    if facts["devices"]:
        lines += ["devices"] + [_device_line(device) for device in facts["devices"]]
    for host, inventory in facts["gpu_inventories"].items():
        lines += [f"GPUs of {host}"] + [f"  {line}" for line in inventory_lines(inventory)]
    return [*lines, *_records_lines(facts["records"]), *_losses_lines(facts["losses"])]


def _files_lines(facts: dict[str, Any]) -> list[str]:
    lines = _align(
        ("files", f"{facts['importers']}  {facts['path']}, {bytes_text(facts['size_bytes'])}"),
        ("begun", _moment(facts["begin_realtime_ns"])),
        ("recorded", duration_text(facts["duration_ns"])),
        ("hosts", ", ".join(facts["hosts"]) or "not in the files"),
        ("processes", str(facts["processes"])),
        ("ranks", _ranks_line(facts)),
        ("steps", f"{len(facts['steps'])}{_span(facts['steps'])}"),
    )
    if facts["devices"]:
        width = max(map(len, facts["devices"].values())) + 2
        lines += ["devices"] + [f"  {ranks:<{width}}{name}" for name, ranks in facts["devices"].items()]
    if facts["facts"]:
        listed = list(facts["facts"].items())[:_FACTS_AT_MOST]
        lines += ["facts"] + [f"  {key:<22} {value}" for key, value in listed]
    return [*lines, *_records_lines(facts["records"]), *_losses_lines(facts["losses"])]


def _own_cost_rows(cost: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows about the cost of the tracing: of what, its parts, and what they depend on."""
    if not cost:
        return [("own cost", "not measured")]
    used_ns = cost["used_ns"]
    whole = range_text(percent_text(cost["least_ratio"]), percent_text(cost["most_ratio"]))
    rows = [f"{whole} of {duration_text(used_ns)} of CPU time, that of all processes from start to end:"]
    for name, part in cost["parts"].items():
        least, most = part["least_ns"], part["most_ns"]
        times = range_text(duration_text(least), duration_text(most))
        shares = range_text(percent_text(least / used_ns), percent_text(most / used_ns))
        rows.append(f"  {name:<18}{times:<20}{shares:<16}{_GROWS_WITH[name]}")
    return [("own cost" if number == 0 else "", row) for number, row in enumerate(rows)]


def _align(*rows: tuple[str, str]) -> list[str]:
    return [f"{name:<12}{text}" for name, text in rows]


def _moment(realtime_ns: int | None) -> str:
    if not realtime_ns:
        return "not known"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(realtime_ns / 1e9))


def _ranks_line(facts: dict[str, Any]) -> str:
    missing = f", missing {ranks_text(facts['missing_ranks'])}" if facts["missing_ranks"] else ""
    return (ranks_text(facts["ranks"]) or "none") + missing


def _host(host: str, ranks_of_hosts: dict[str, list[int]]) -> str:
    return f"{host} ({ranks_named(ranks_of_hosts[host])})" if host in ranks_of_hosts else host


def _launcher_line(launcher: dict[str, Any]) -> str:
    code = launcher["exit_code"]
    ending = f"ended with exit code {code}" if code is not None else "no end recorded"
    return f"  {launcher['host'] or 'unknown host':<20}{ending}"


def _device_line(device: dict[str, Any]) -> str:
    whose = f"rank {device['rank']}" if device["rank"] >= 0 else f"process {device['process_id']}"
    clocks = ", ".join(
        f"{name} +-{duration_text(clock['error_ns'])}" + (" (read once)" if clock["anchors_count"] == 1 else "")
        for name, clock in device["clocks"].items()
    )
    place = f"GPU {device['device_index']}  {device['name']}  {device['bus']}"
    if device["site_job"]:
        place += f"  of job {device['site_job']}"
    return f"  {whose:<10}{place}  clocks: {clocks or 'none was read, so nothing on it has a time'}"


def _span(numbers: list[int]) -> str:
    """Return first and last number of the steps, unless they count from 0."""
    if not numbers or numbers[-1] == len(numbers) - 1:
        return ""
    return f" ({numbers[0]} to {numbers[-1]})" if len(numbers) > 1 else f" (number {numbers[0]})"


def _records_lines(records: dict[str, int]) -> list[str]:
    return ["records"] + [f"  {name:<22}{count:>12,}" for name, count in records.items()]


def _losses_lines(losses: list[dict[str, Any]]) -> list[str]:
    """Return a line for each loss; of more than three that have different advice for one reason, the first three."""
    if not losses:
        return ["lost        nothing"]
    totals: dict[tuple[str, str, str], Counter[str]] = {}
    for row in losses:
        counts = totals.setdefault((row["collector"], row["reason"], row["severity"]), Counter())
        counts[row["advice"]] += row["lost_count"]
    lines = ["lost"]
    for (collector, reason, severity), counts in totals.items():
        named = list(counts.items())
        lines += [f"  {n:,} {collector}/{reason} ({severity}): {advice}" for advice, n in named[:_ALIKE_AT_MOST]]
        if rest := named[_ALIKE_AT_MOST:]:
            total = sum(n for _, n in rest)
            lines.append(
                f"  {total:,} {collector}/{reason} ({severity}) in {len(rest):,} more lines, see --format json"
            )
    return lines
