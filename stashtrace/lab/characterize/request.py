"""The request for a characterization: the user's command with the numbers of ranks to run, and the directory.

``characterize`` runs one command on one device, on all of a host, and over several hosts, by torchrun, accelerate,
deepspeed, mpiexec, or a template of the user. Words of the command that do not count ranks stay as they are.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError, UsageError
from stashtrace.lab.characterize.answer import FILE_NAME, Characterization, read_characterization
from stashtrace.lab.characterize.network import Shape
from stashtrace.lab.characterize.run_figures import CONFIGURATIONS
from stashtrace.lab.machine import machine_facts
from stashtrace.record.directory import file_rights
from stashtrace.record.launchers import TORCHRUN_MODULES

TORCHRUN, ACCELERATE, DEEPSPEED, MPI = "torchrun", "accelerate", "deepspeed", "mpi"
TEMPLATE, SINGLE = "template", "single"
_MPI_NAMES = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "srun")
#: Option that counts the ranks of a host, by launcher; the first spelling is the one that is written.
_COUNT: Mapping[str, tuple[str, ...]] = {
    TORCHRUN: ("--nproc-per-node", "--nproc_per_node"),
    ACCELERATE: ("--num_processes", "--num-processes"),
    DEEPSPEED: ("--num_gpus",),
    MPI: ("-n", "-np", "--ntasks"),
}
#: Options about where ranks meet -> how many words follow: they are replaced for several hosts.
_TORCHRUN_RENDEZVOUS = {"--standalone": 0} | dict.fromkeys(
    (
        *("--nnodes", "--node-rank", "--rdzv-backend", "--rdzv-id", "--rdzv-endpoint", "--rdzv-conf"),
        *("--master-addr", "--master-port", "--max-restarts", "--local-addr"),
    ),
    1,
)
_ACCELERATE_RENDEZVOUS = {"--multi_gpu": 0, "--same_network": 0} | dict.fromkeys(
    ("--num_machines", "--machine_rank", "--main_process_ip", "--main_process_port"), 1
)
_RANKS, _HOSTS, _HOST_RANK, _ADDRESS, _PORT = "{ranks}", "{hosts}", "{host_rank}", "{address}", "{port}"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of several hosts meet."""

    #: How many there are.
    hosts: int
    #: Which of them this is.
    host_rank: int
    #: str, int; Of the first.
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class RankCommand:
    """A command whose number of ranks can be chosen."""

    #: As the user typed them.
    words: tuple[str, ...]
    #: The launcher, or ``template``, or ``single`` if nothing in it counts ranks.
    kind: str
    #: Ranks of one host, as typed or as an option says.
    ranks: int

    def on_one_host(self, ranks: int) -> list[str]:
        """Return the command with this number of ranks."""
        if self.kind == TEMPLATE:
            return _fill(self.words, ranks, Rendezvous(1, 0, "127.0.0.1", 29500))
        if self.kind == SINGLE:
            return list(self.words)
        words = list(self.words)
        if self.kind == ACCELERATE and ranks == 1:
            words = _without(words, {"--multi_gpu": 0})
        if self.kind == TORCHRUN and _value_of(words, TORCHRUN, ("--nnodes",)) not in (None, "1", "1:1"):
            words = _without(words, _TORCHRUN_RENDEZVOUS)  # else it would wait for the other hosts
        return _with_count(words, self.kind, ranks)

    def on_hosts(self, ranks: int, rendezvous: Rendezvous) -> list[str]:
        """Return the command for one of several hosts, with this number of ranks on it.

        Raises UsageError if this launcher starts its other hosts itself: a template says how.
        """
        if self.kind == TEMPLATE:
            if not any(_HOST_RANK in word for word in self.words):
                raise UsageError(
                    "the template does not say which host it runs on",
                    hint="use {hosts}, {host_rank}, {address} and {port} in it, or leave configuration 5 out:"
                    " --steps 1,2,3,4",
                )
            return _fill(self.words, ranks, rendezvous)
        place = (rendezvous.hosts, rendezvous.host_rank, rendezvous.address, rendezvous.port)
        if self.kind == TORCHRUN:
            words = _without(list(self.words), _TORCHRUN_RENDEZVOUS)
            options = ("--nnodes", "--node-rank", "--master-addr", "--master-port")
        elif self.kind == ACCELERATE:
            words = _without(list(self.words), _ACCELERATE_RENDEZVOUS)
            ranks *= rendezvous.hosts  # accelerate counts those of all hosts
            options = ("--num_machines", "--machine_rank", "--main_process_ip", "--main_process_port")
        else:
            raise UsageError(
                f"configuration 5 with {self.kind} needs a command for each host",
                hint="give one with {ranks}, {hosts}, {host_rank}, {address} and {port} in it, or --steps 1,2,3,4",
            )
        words = _with_count(words, self.kind, ranks)
        at = _after_launcher(words, self.kind)
        more = [str(word) for pair in zip(options, place, strict=True) for word in pair]
        return [*words[:at], *more, *words[at:]]


def rank_command(words: Sequence[str], ranks: int | None = None) -> RankCommand:
    """Parse a command.

    ``words``: program and arguments; ``{ranks}`` in them makes it a template. ``ranks``: ranks of one host; needed
    where the command does not say it with a number. Raises UsageError if it is not known how many ranks there are.

    Examples
    --------
    >>> rank_command(["torchrun", "--nproc-per-node=8", "train.py"]).on_one_host(1)
    ['torchrun', '--nproc-per-node=1', 'train.py']
    """
    if not words:
        raise UsageError("no command to run", hint="put it after two dashes: `stashtrace characterize -- torchrun ...`")
    if ranks is not None and ranks < 1:
        raise UsageError(f"a job with {ranks} ranks does nothing", hint="for example --ranks 8")
    words = tuple(words)
    if any(_RANKS in word for word in words):
        if ranks is None:
            raise UsageError(
                "how many ranks does a host have?", hint="with {ranks} in the command say so: for example --ranks 8"
            )
        return RankCommand(words, TEMPLATE, ranks)
    kind = _kind(words)
    if kind == SINGLE:
        if ranks not in (None, 1):
            raise UsageError(
                f"nothing in the command says how many ranks it has, so it cannot be run with {ranks}",
                hint="use torchrun, or put {ranks} where the number belongs",
            )
        return RankCommand(words, SINGLE, 1)
    if ranks is None:
        text = _value_of(words, kind, _COUNT[kind])
        if text is None or not text.isdecimal() or int(text) < 1:
            said = f"{_COUNT[kind][0]} {text}" if text else f"no {_COUNT[kind][0]}"
            raise UsageError(
                f"how many ranks does a host have? The command says {said}", hint="say it: for example --ranks 8"
            )
        ranks = int(text)
    return RankCommand(words, kind, ranks)


def _kind(words: Sequence[str]) -> str:
    for index, word in enumerate(words):
        name = os.path.basename(word)
        if name == "torchrun" or (word in TORCHRUN_MODULES and words[index - 1] == "-m"):
            return TORCHRUN
        if name == "accelerate" and list(words[index + 1 : index + 2]) == ["launch"]:
            return ACCELERATE
        if name == "deepspeed":
            return DEEPSPEED
        if name in _MPI_NAMES:
            return MPI
        if word.endswith(".py"):
            break  # what follows belongs to the script
    return SINGLE


def _after_launcher(words: Sequence[str], kind: str) -> int:
    for index, word in enumerate(words):
        name = os.path.basename(word)
        if kind == TORCHRUN and (name == "torchrun" or word in TORCHRUN_MODULES):
            return index + 1
        if kind == ACCELERATE and name == "accelerate":
            return index + 2
        if (kind == DEEPSPEED and name == "deepspeed") or (kind == MPI and name in _MPI_NAMES):
            return index + 1
    raise ValueError(f"no {kind} in {words}")


def _options(words: Sequence[str], kind: str) -> range:
    """Positions of the launcher's options: before the script."""
    begin = _after_launcher(words, kind)
    script = (at for at in range(begin, len(words)) if words[at].endswith(".py"))
    return range(begin, next(script, len(words)))


def _value_of(words: Sequence[str], kind: str, names: Sequence[str]) -> str | None:
    """Value of an option of the launcher, None if it is not there."""
    for index in _options(words, kind):
        name, equals, value = words[index].partition("=")
        if name in names:
            return value if equals else next(iter(words[index + 1 : index + 2]), None)
    return None


def _with_count(words: Sequence[str], kind: str, ranks: int) -> list[str]:
    out = list(words)
    for index in _options(words, kind):
        name, equals, _ = words[index].partition("=")
        if name in _COUNT[kind]:
            if equals:
                out[index] = f"{name}={ranks}"
            else:
                out[index + 1 : index + 2] = [str(ranks)]
            return out
    at = _after_launcher(words, kind)
    return [*out[:at], _COUNT[kind][0], str(ranks), *out[at:]]


def _without(words: Sequence[str], names: Mapping[str, int]) -> list[str]:
    """Remove options of the launcher, in either spelling, with their values."""
    kind = _kind(words)
    own = _options(words, kind)
    keep, skip = list(words[: own.start]), 0
    plain = {name.replace("_", "-"): values for name, values in names.items()}
    for word in words[own.start : own.stop]:
        if skip:
            skip -= 1
            continue
        name, equals, _ = word.partition("=")
        values = plain.get(name.replace("_", "-"))
        if values is None:
            keep.append(word)
        elif not equals:
            skip = values
    return [*keep, *words[own.stop :]]


def _fill(words: Sequence[str], ranks: int, rendezvous: Rendezvous) -> list[str]:
    values = {
        _RANKS: ranks,
        _HOSTS: rendezvous.hosts,
        _HOST_RANK: rendezvous.host_rank,
        _ADDRESS: rendezvous.address,
        _PORT: rendezvous.port,
    }
    out = []
    for word in words:
        for name, value in values.items():
            word = word.replace(name, str(value))
        out.append(word)
    return out


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
    #: Whether ranks keep to separate processors.
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
