"""``stashtrace info PATH``: what a run holds."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.errors import MissingDataError
from stashtrace.record.launchers import launchers
from stashtrace.schema.kinds import DeviceClock
from stashtrace.units import bytes_text, duration_text, ranks_text
from stashtrace.visible import visible_line

if TYPE_CHECKING:
    from stashtrace.schema.trace import Trace


def parser() -> Parser:
    """Options of ``stashtrace info``."""
    parser = Parser("info", "Show what a run holds: ranks, steps, devices, records, losses.")
    parser.add_argument("path", metavar="PATH", help="run directory, .stash file, or files of another tool")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="lines (default) or JSON")
    parser.add_argument("--run", metavar="ID", help="which run, if the directory holds several; ID.N: its start N")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the facts."""
    arguments = parser().read(argv)
    path = str(existing_run(arguments.path))

    from stashtrace.cli import foreign
    from stashtrace.loading.load import is_foreign
    from stashtrace.store.layout import is_store

    outside = is_foreign(path) or is_store(path)
    facts = foreign.describe_files(path) if outside else describe(path, arguments.run)
    if arguments.format == "json":
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    else:
        sys.stdout.write(foreign.lines(facts) if outside else _lines(facts))
    return 0


def describe(path: str, run_id: str | None = None) -> dict[str, Any]:
    """Facts about a run, JSON-ready.

    ``ranks`` is the list of global ranks, ``steps`` the number of steps that the ranks have in common order,
    ``devices`` those of each process with the error of their clocks, ``records`` rows per collector, ``losses`` a list
    of rows of the losses table.
    """
    from stashtrace.analysis.findings.facts import ranks_of_hosts
    from stashtrace.analysis.findings.losses import losses_of
    from stashtrace.analysis.registry import analyze
    from stashtrace.format.reader import open_run
    from stashtrace.loading.load import load_trace

    raw = open_run(path, run_id=run_id)
    records: Counter[str] = Counter()
    for process in raw.processes:
        collectors = {layout.name: layout.collector for layout in process.layouts.values()}
        for name, count in process.row_counts().items():
            records[collectors.get(name, "unknown")] += count
    trace = load_trace(path, run_id=run_id)
    try:
        steps = analyze(trace, "steps")
        ordinals = {int(s) for s in steps["step"] if s >= 0}
    except MissingDataError:
        ordinals = set()
    run = raw.run
    begin, end = (run.get(name) for name in ("begin_monotonic_ns", "end_monotonic_ns"))
    ranks = [int(r) for r in trace.ranks]
    world = max((int(w) for w in trace.processes["world_size"]), default=-1)
    return {
        "path": path,
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
        "ranks": ranks,
        "missing_ranks": [r for r in range(max(world, 0)) if r not in ranks],
        "steps": len(ordinals),
        "devices": _devices(trace),
        "records": dict(sorted(records.items())),
        "losses": losses_of(trace),
    }


def _launcher(part: dict[str, Any]) -> dict[str, Any]:
    """What a launcher of the job said, without what all of them say."""
    names = ("host", "run_id", "begin_realtime_ns", "end_realtime_ns", "exit_code", "signal")
    return {name: part.get(name) for name in names}


def _hosts_line(facts: dict[str, Any]) -> str:
    of_hosts = facts["ranks_of_hosts"]
    return ", ".join(
        f"{host} (rank{'s' if len(of_hosts[host]) > 1 else ''} {ranks_text(of_hosts[host])})"
        if host in of_hosts
        else host
        for host in facts["hosts"]
    )


def _launcher_line(launcher: dict[str, Any]) -> str:
    code = launcher["exit_code"]
    ending = f"ended with exit code {code}" if code is not None else "has not said that it ended"
    return f"  {launcher['host'] or 'unknown host':<20}{ending}"


def _devices(trace: Trace) -> list[dict[str, Any]]:
    """Each device of each process, and how well its clocks are known."""
    found = []
    clocks = list(trace.device_clocks.rows())
    for row in trace.devices.rows():
        owner = (row["process_id"], row["device_index"])
        found.append(
            {
                "rank": row["rank"],
                "process_id": row["process_id"],
                "device_index": row["device_index"],
                "name": trace.text(row["name_code"]),
                "uuid": trace.text(row["uuid_code"]),
                "bus": trace.text(row["bus_code"]),
                "memory_bytes": row["memory_bytes"],
                "driver": row["driver_code"],
                "clocks": {
                    DeviceClock(c["clock_code"]).name.lower(): {
                        k: c[k] for k in ("anchors_count", "error_ns", "drift_ppb")
                    }
                    for c in clocks
                    if (c["process_id"], c["device_index"]) == owner
                },
            }
        )
    return found


def _device_line(device: dict[str, Any]) -> str:
    whose = f"rank {device['rank']}" if device["rank"] >= 0 else f"process {device['process_id']}"
    clocks = ", ".join(
        f"{name} +-{duration_text(clock['error_ns'])}" + (" (read once)" if clock["anchors_count"] == 1 else "")
        for name, clock in device["clocks"].items()
    )
    place = f"GPU {device['device_index']}  {device['name']}  {device['bus']}"
    return f"  {whose:<10}{place}  clocks: {clocks or 'none was read, so nothing on it has a time'}"


def _lines(facts: dict[str, Any]) -> str:
    begin = facts["begin_realtime_ns"]
    length_ns, code = facts["duration_ns"], facts["exit_code"]
    after = f"after {duration_text(length_ns)}, " if length_ns is not None else ""
    ending = f"{after}exit code {code}" if code is not None else ""
    merged = "" if facts["merged"] else ", not merged"
    missing = f", missing {ranks_text(facts['missing_ranks'])}" if facts["missing_ranks"] else ""
    rows = [
        ("run", f"{facts['run_id'] or '-'}  {facts['path']}"),
        ("command", shlex.join(facts["command"]).replace("\n", " ") or "not known"),
        ("begun", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begin / 1e9)) if begin else "not known"),
        ("ended", ending or "not yet, or its launcher was killed"),
        ("hosts", _hosts_line(facts)),
        ("processes", f"{facts['processes']}, {bytes_text(facts['size_bytes'])}{merged}"),
        ("ranks", (ranks_text(facts["ranks"]) or "none") + missing),
        ("steps", str(facts["steps"])),
    ]
    lines = [f"{name:<12}{text}" for name, text in rows]
    if len(facts["launchers"]) > 1:
        lines += ["launchers"] + [_launcher_line(launcher) for launcher in facts["launchers"]]
    if facts["devices"]:
        lines += ["devices"] + [_device_line(device) for device in facts["devices"]]
    lines += ["records"] + [f"  {name:<22}{count:>12,}" for name, count in facts["records"].items()]
    lines += ["losses"] + [
        f"  {row['lost_count']:,} {row['collector']}/{row['reason']} ({row['severity']}): {row['advice']}"
        for row in facts["losses"]
    ]
    if not facts["losses"]:
        lines[-1] += "      none"
    return "\n".join(map(visible_line, lines)) + "\n"
