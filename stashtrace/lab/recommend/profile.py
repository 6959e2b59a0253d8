"""The measurements of ``stashtrace characterize`` on one machine, read from ``characterization.json``.

A file of a quick, emulated or partly failed characterization is read too; what it lacks is absent here, and what it
says of itself goes along as notes. A reader takes every file of its format and ignores keys that it does not know.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stashtrace.errors import MissingDataError
from stashtrace.files.checked_files import CheckedFile, is_number
from stashtrace.lab.characterize.answer import FAILED, MEASURED, characterization_in
from stashtrace.lab.characterize.run_figures import CONFIGURATIONS
from stashtrace.lab.number_intervals import Interval

#: Of an instance that nobody named.
THIS_MACHINE = "this machine"


@dataclass(frozen=True, slots=True)
class Profile:
    """One characterization."""

    #: Where it was read.
    path: str
    #: Name in the catalog.
    instance: str
    #: Ranks of configurations 2 to 4, on one host.
    devices_count: int
    #: What the machine calls its devices; empty without any.
    machine_devices: tuple[str, ...]
    #: Of one rank and step; 0 if unknown.
    batch_samples: int
    #: Configuration -> time of a training step, of the configurations that were measured.
    step_ns: Mapping[int, Interval]
    #: Hosts and ranks in all of configuration 5.
    network_hosts_count: int = 0
    network_devices_count: int = 0
    #: What those hosts are in the catalog.
    network_instance: str = ""
    #: Rate to which they were shaped, 0 if they were not.
    network_bits_per_s: int = 0
    #: Configuration 5 ran on one host, in namespaces.
    network_emulated: bool = False
    #: Of one step and rank; 0 if unknown.
    gradient_bytes: int = 0
    messages_count: int = 0
    #: What its ranks computed on: ``gpu``, ``cpu``; empty if unknown.
    device: str = ""
    #: Of all ranks in an epoch of the job; 0 if unknown.
    epoch_samples: int = 0
    #: What the file says of itself that weakens it.
    notes: tuple[str, ...] = ()


def load_profile(path: str | os.PathLike[str], *, instance: str = "") -> Profile:
    """Read and check one characterization.

    ``instance``: name for a machine that the file does not name. Raises MissingDataError if there is no such file, or
    no configuration of it was measured. Raises UnsupportedVersionError if a newer stashtrace wrote it. Raises
    FormatError if it is not a characterization; the message says why.
    """
    return _profile(*characterization_in(Path(path)), instance)


def _profile(file: CheckedFile, content: Mapping[str, Any], instance: str) -> Profile:
    steps = file.table(content, "steps")
    entries = {k: file.table(steps, f"t{k}_ns") for k in CONFIGURATIONS}
    step_ns = {k: step for k, entry in entries.items() if (step := _step_ns(file, k, entry)) is not None}
    if not step_ns:
        hint = "run `stashtrace characterize` again"
        raise MissingDataError(f"no configuration of {file.path} was measured", hint=hint)
    network, machine, gradients = (file.table(content, key) for key in ("network", "machine", "gradients"))
    devices = file.count(content, "devices_count")
    if devices < 1:
        raise file.damaged("devices_count is 0")
    own = file.text(content, "instance") or instance or THIS_MACHINE
    names = machine.get("devices", [])
    # "A100" and "8 x A100" are both in use: a list of names, or one name.
    names = [names] if isinstance(names, str) else names
    emulated = bool(network.get("emulated")) or bool(content.get("emulated") and 5 in step_ns)
    return Profile(
        path=file.path,
        instance=own,
        devices_count=devices,
        machine_devices=tuple(str(one) for one in names) if isinstance(names, list) else (),
        batch_samples=file.count(content, "batch_samples"),
        step_ns=step_ns,
        network_hosts_count=file.count(content, "network_hosts_count"),
        network_devices_count=file.count(network, "devices_count") or devices,
        network_instance=file.text(network, "instance") or own,
        network_bits_per_s=file.count(network, "rate_bits_per_s"),
        network_emulated=emulated,
        gradient_bytes=file.count(gradients, "bytes"),
        messages_count=file.count(gradients, "messages_count"),
        device=file.text(content, "device"),
        epoch_samples=file.count(content, "epoch_samples"),
        notes=_notes(file.path, content, entries, step_ns, emulated, own),
    )


def _notes(
    path: str,
    content: Mapping[str, Any],
    entries: Mapping[int, Mapping[str, Any]],
    step_ns: Mapping[int, Interval],
    emulated: bool,
    instance: str,
) -> tuple[str, ...]:
    notes = []
    if content.get("quick"):
        notes.append(f"{path} is of a --quick characterization")
    if emulated:
        notes.append(f"the network of {path} was emulated on one host: nothing of several hosts is called measured")
    if instance == THIS_MACHINE:
        give = f"give --instance NAME, or --price '{instance}=VALUE'"
        notes.append(f"{path} names no instance, so it has no price: {give}")
    if not any(one.known for one in step_ns.values()):
        notes.append(f"the configurations of {path} were run once, so there are no intervals")
    for configuration, entry in entries.items():
        if entry.get("status") == FAILED:
            notes.append(f"configuration {configuration} of {path} failed: {entry.get('why') or 'no reason given'}")
    return tuple(notes)


def _step_ns(file: CheckedFile, configuration: int, entry: Mapping[str, Any]) -> Interval | None:
    """Time of a training step in one configuration, None if it was not measured."""
    value, key = entry.get("value_ns"), f"t{configuration}_ns"
    if value is None or entry.get("status", MEASURED) != MEASURED:
        return None
    bounds = [entry.get("low_ns"), entry.get("high_ns")]
    for one in (value, *bounds):
        if one is not None and not is_number(one):
            raise file.damaged(f"{key} holds {one!r}")
    if value <= 0:
        raise file.damaged(f"{key} is {value}")
    low, high = (math.nan if one is None else float(one) for one in bounds)
    if not (math.isnan(low) or math.isnan(high)) and not low <= value <= high:
        raise file.damaged(f"{key} lies outside its interval")
    # Of two runs that differ much the interval is so wide that it reaches below nothing; a step cannot.
    return Interval(float(value), max(low, 0.0) if low == low else low, high)
