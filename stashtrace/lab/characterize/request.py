"""The request for a characterization, and the directory that it goes to."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError, UsageError
from stashtrace.lab.characterize.answer import FILE_NAME, Characterization, read_characterization
from stashtrace.lab.characterize.change_rank_count import rank_command
from stashtrace.lab.characterize.differential import CONFIGURATIONS
from stashtrace.lab.characterize.network import Shape
from stashtrace.lab.machine import machine_facts
from stashtrace.record.directory import file_rights


@dataclass(frozen=True, slots=True)
class CharacterizationRequest:
    """A characterization that was asked for."""

    command: tuple[str, ...]
    #: Directory of the characterization.
    out: Path
    #: Some of 1 to 5.
    configurations: tuple[int, ...] = CONFIGURATIONS
    #: Runs of each configuration; training steps of a run that are measured, and those before them that are not.
    repeats: int = 5
    iterations: int = 60
    warmup: int = 10
    #: Of a host, where the command does not say.
    ranks: int | None = None
    #: For configuration 5: names for ssh, the first may be ``localhost``.
    hosts: tuple[str, ...] = ()
    #: For configuration 5, in place of hosts: a link between two network namespaces.
    emulated: Shape | None = None
    #: For configuration 5, in place of both: a command that starts its ranks on several hosts itself.
    network_command: tuple[str, ...] = ()
    #: Files and folders of the data set; empty: what the job was seen to read.
    data: tuple[Path, ...] = ()
    #: Whether the page cache of the whole machine may be dropped.
    drop_caches: bool = False
    #: Whether ranks keep to processors of their own.
    pin: bool = True
    #: Of one run.
    timeout_s: float = 600.0
    #: Name of this machine in a catalog.
    instance: str = ""
    #: Samples per rank and step; 0: as many as its DataLoaders say.
    batch_samples: int = 0
    #: Whether fewer and shorter runs were asked for: the answer says so.
    quick: bool = False
    version: str = ""

    def plan(self) -> dict[str, Any]:
        """Settings that all runs of one characterization share; the number of repetitions may grow."""
        shape = self.emulated
        return {
            "command": list(self.command),
            "iterations": self.iterations,
            "warmup": self.warmup,
            "ranks": self.ranks,
            "hosts": list(self.hosts),
            "network_command": list(self.network_command),
            "pin": self.pin,
            "data": [str(path) for path in self.data],
            "emulated": [shape.rate_bits_per_s, shape.delay_ns] if shape else None,
        }


def open_characterization(request: CharacterizationRequest) -> Characterization:
    """Read what is in the directory already, or begin a new characterization there.

    Raises UsageError if nothing would be measured, or the directory holds something else. Raises FormatError if the
    file of a characterization there is damaged. Raises CaptureError if it cannot be written to.
    """
    unknown = set(request.configurations) - set(CONFIGURATIONS)
    if not request.configurations or unknown:
        raise UsageError(f"there is no configuration {sorted(unknown)}", hint="--steps 1,2,3,4,5")
    if request.repeats < 1 or request.iterations < 1 or request.warmup < 0 or not request.timeout_s > 0:
        raise UsageError("nothing would be measured", hint="for example --repeat 5 --iterations 60 --timeout 600")
    if absent := [str(path) for path in request.data if not path.exists()]:
        raise UsageError(f"there is no data set at {', '.join(absent)}", hint="--data PATH is a file or a folder")
    if (request.out / FILE_NAME).exists():
        answer = read_characterization(request.out)
        begun = answer.runs or answer.facts.get("look")
        if begun and answer.plan != request.plan():
            differs = [key for key, value in request.plan().items() if answer.plan.get(key) != value]
            raise UsageError(
                f"{request.out} holds another characterization ({', '.join(differs)} differ)",
                hint="choose another directory with --out, or give the same command to continue that one",
            )
        if begun:
            # What these say is not measured, so a later call may say it.
            answer.facts["instance"] = request.instance or answer.facts.get("instance", "")
            answer.facts["batch_samples"] = request.batch_samples or answer.facts.get("batch_samples", 0)
            return answer
    elif request.out.exists() and not request.out.is_dir():
        raise UsageError(f"{request.out} is not a folder", hint="choose another with --out")
    elif request.out.exists() and any(request.out.iterdir()):
        raise UsageError(f"{request.out} is not empty", hint="choose another directory with --out")
    command = rank_command(request.command, request.ranks)
    shape = request.emulated
    network = shape and {"emulated": True, "rate_bits_per_s": shape.rate_bits_per_s, "latency_ns": shape.delay_ns}
    facts = {
        "stashtrace_version": request.version,
        "command": list(request.command),
        "created": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine_facts(),
        "instance": request.instance,
        "device": "cpu",
        "devices_count": command.ranks,
        "network_hosts_count": 0,
        "network": network,
        "batch_samples": request.batch_samples,
        "epoch_samples": 0,
        "gradients": {"tensors_count": 0, "bytes": 0, "messages_count": 0},
        "quick": request.quick,
        "emulated": shape is not None,
    }
    answer = Characterization(request.plan(), facts)
    try:
        with file_rights(share=False):
            request.out.mkdir(parents=True, exist_ok=True)
        answer.save(request.out)  # whatever happens now, the next call knows the directory
    except OSError as error:
        raise CaptureError(f"cannot write to {request.out}: {error.strerror}", hint="choose another --out") from error
    return answer
