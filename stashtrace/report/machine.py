"""What ran where: command, times, hosts, devices and versions of a run, and what was lost of it."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import stashtrace
from stashtrace.analysis.findings.rules.losses import losses_of
from stashtrace.analysis.findings.summary_input import ranks_of_hosts
from stashtrace.record.directory import read_run_file
from stashtrace.record.gpu.inventory import inventories_of, inventory_lines
from stashtrace.schema.trace import Trace, run_facts
from stashtrace.units import bytes_text, duration_text, ranks_text

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
#: Values of a fact, hosts and kinds of loss that are listed.
_VALUES, _HOSTS, _LOSSES = 4, 32, 40


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
        "kinds": [{**dict(zip(names, key, strict=True)), "lost_count": count} for key, count in listed[:_LOSSES]],
        "more_count": max(len(listed) - _LOSSES, 0),
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
    more = f"; and {len(named) - _HOSTS} more" if len(named) > _HOSTS else ""
    return "; ".join(named[:_HOSTS]) + more


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}" if ranks else "no rank"


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
    """Return a row for the GPUs of each host, or of several hosts alike, as nvidia-ml-py listed them."""
    hosts: dict[str, list[str]] = {}
    for path in map(Path, filter(None, trace.path.split(os.pathsep))):
        if path.is_dir():
            for host, inventory in inventories_of(path, read_run_file(path)).items():
                hosts.setdefault("; ".join(inventory_lines(inventory)), []).append(host)
    rows = [(f"GPUs of {', '.join(sorted(named)[:_HOSTS])}", text) for text, named in hosts.items()]
    return rows[:_HOSTS]


def _values(trace: Trace, key: str) -> list[str]:
    """Return the values that processes give for a fact, without repeats; a long list is cut."""
    table = trace.metadata
    codes = table["value_code"][(table["key_code"] == trace.strings.find(key)) & (table["process_id"] >= 0)]
    values = sorted(filter(None, (trace.text(code) for code in np.unique(codes).tolist())))
    return [*values[:_VALUES], f"and {len(values) - _VALUES} more"] if len(values) > _VALUES else values


def _first(trace: Trace, key: str) -> str:
    """Return the value of the first process that gives a fact."""
    table = trace.metadata
    rows = np.flatnonzero((table["key_code"] == trace.strings.find(key)) & (table["process_id"] >= 0))
    return trace.text(int(table["value_code"][rows[0]])) if len(rows) else ""
