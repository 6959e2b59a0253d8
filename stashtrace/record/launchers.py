"""The job that a launcher belongs to, and the launchers of one job that share a run directory.

Several ``stashtrace run`` may start one job together. They need one run id but do not talk to each other, so the id is
a hash of a name that all of them know.

Each ``stashtrace run`` of the job has a separate file, ``launch.HOST.PID.json``, which no other writes. None waits
for another. The last one to end merges. One that ends with an error merges what is there, since the others may never
end; one that ends later merges again. Of the file system this needs exclusive creation of a file, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError, UsageError
from stashtrace.files.run_facts import read_facts
from stashtrace.files.whole_files import new_file, write_whole
from stashtrace.scrubbing.secrets import scrub_urls

_RUN_ID_DIGITS = 16
_HEXADECIMAL = re.compile(r"[0-9a-f]{8,64}")
#: From here on SLURM numbers what is not a job step: batch script, interactive shell, extern.
FIRST_SPECIAL_STEP = 4_294_967_280
TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
#: Options of torchrun that take no value; all others take one, as the next word or after "=".
_TORCHRUN_FLAGS = frozenset({"standalone", "module", "m", "no_python", "run_path", "use_env", "virtual_local_rank"})


@dataclass(frozen=True, slots=True)
class Job:
    """What the launchers of one job have in common."""

    #: Hexadecimal; the same for all launchers of the job, random if the job has no name.
    run_id: str
    #: Fit for a file name, such as ``slurm-4711.0``; empty if this is the only launcher.
    name: str = ""
    #: Number of ``stashtrace run`` of the job, -1 if unknown.
    launchers_count: int = 1
    #: Whether no other job has had this name; a rendezvous id or endpoint may be used again.
    unique: bool = True


def job_of(command: Sequence[str], environment: Mapping[str, str], run_id: str | None = None) -> Job:
    """Return the job that ``command`` is a part of.

    ``run_id``: given by the user on every host; overrides every other name. Raises UsageError if the run id is empty.
    """
    launchers = -1
    for name, count in (_slurm(environment), _mpi(environment), _torchrun(command, environment)):
        if count != 1:
            launchers = count
            if name and run_id is None:
                return Job(_hash(name), _file_name(scrub_urls(name)), count, unique=not name.startswith("torchrun"))
            break
    if run_id is not None:
        if not run_id.strip():
            raise UsageError("the run id is empty", hint='for example --run-id "$JOB_ID", the same on every host')
        digits = run_id if _HEXADECIMAL.fullmatch(run_id) else _hash(run_id)
        return Job(digits, _file_name(scrub_urls(run_id)), launchers)
    return Job(os.urandom(_RUN_ID_DIGITS // 2).hex())


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_RUN_ID_DIGITS]


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "job"


def _slurm(environment: Mapping[str, str]) -> tuple[str, int]:
    """Name and number of tasks of a SLURM job step; the batch script, which starts srun or torchrun, is not one."""
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if not job or not step.isdecimal() or int(step) >= FIRST_SPECIAL_STEP:
        return "", 1
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    again = "" if restarts in ("", "0") else f"-restart{restarts}"
    return f"slurm-{job}.{step}{again}", _count(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def _mpi(environment: Mapping[str, str]) -> tuple[str, int]:
    """Name and number of processes of an MPI job. Hydra (MPICH, Intel MPI) gives its processes no name of the job."""
    for kind, key, sizes in (
        ("mpi", "PMIX_NAMESPACE", ("OMPI_COMM_WORLD_SIZE", "PMIX_SIZE")),
        ("pals", "PALS_APID", ("PALS_SIZE", "PMI_SIZE")),
        ("mpi", "PMI_JOBID", ("PMI_SIZE",)),
        ("flux", "FLUX_JOB_ID", ("FLUX_JOB_SIZE",)),
    ):
        # A shell in an allocation has the job's id too, but no size.
        if environment.get(key) and (count := _count(environment, *sizes)) > 0:
            return f"{kind}-{environment[key]}", count
    return "", _count(environment, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", default=1)


def _torchrun(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int]:
    """Name and number of agents of a torchrun job, which is named after its rendezvous."""
    options = _torchrun_options(command)
    if options is None or "standalone" in options:
        return "", 1
    options = {key[4:].lower(): value for key, value in environment.items() if key.startswith("PET_")} | options
    nodes = options.get("nnodes", "1")
    if nodes in ("1", "1:1"):
        return "", 1
    count = int(nodes) if nodes.isdecimal() else -1  # "2:4" may become any of them
    master = f"{options.get('master_addr', '')}:{options.get('master_port', '29500')}"
    name = options.get("rdzv_id", "none")
    if name in ("", "none"):
        name = _endpoint_name(options.get("rdzv_endpoint") or master)
    return (f"torchrun-{name}" if name else ""), count


def _endpoint_name(endpoint: str) -> str:
    """Name of a rendezvous endpoint; this host's for one on the loopback, empty if that has no port."""
    host, _, port = endpoint.rpartition(":")
    if host not in ("", "localhost", "::1", "[::1]") and not host.startswith("127."):
        return endpoint
    return f"{os.uname().nodename}:{port}" if port.isdecimal() and int(port) else ""


def _torchrun_options(command: Sequence[str]) -> dict[str, str] | None:
    """Options of torchrun in a command, spelt with underscores; None if the command does not run torchrun."""
    begin = None
    for index, word in enumerate(command):
        if os.path.basename(word) == "torchrun" or (word in TORCHRUN_MODULES and command[index - 1] == "-m"):
            begin = index + 1
            break
    if begin is None:
        return None
    options: dict[str, str] = {}
    index = begin
    while index < len(command) and command[index].startswith("-"):
        name, equals, value = command[index].lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not equals and name not in _TORCHRUN_FLAGS and index + 1 < len(command):
            index += 1
            value = command[index]
        options[name] = value
        index += 1
    return options


def _count(environment: Mapping[str, str], *names: str, default: int = -1) -> int:
    return next((int(environment[n]) for n in names if environment.get(n, "").isdecimal()), default)


# The commit that a job runs, read from the files of the repository that holds its working directory.

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
#: Where continuous integration names the commit, for images that were built without the repository.
_COMMIT_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA")
#: A file of a repository that names a commit is shorter; the list of packed references may be long.
_LONGEST_BYTES = 64 << 20


def commit_of(directory: Path, environment: Mapping[str, str]) -> str:
    """Return the commit of the repository around a directory, in hexadecimal digits; empty if there is none.

    No program is started, so changes that are not committed are not seen. Without a repository, the variables of
    continuous integration are asked.
    """
    for folder in (directory, *directory.parents):
        entry = folder / ".git"
        if entry.exists():
            try:
                found = _head(_git_folder(entry))
            except (OSError, ValueError):  # closed to us, or no repository after all
                found = ""
            if found:
                return found
            break
    named = (environment.get(name, "") for name in _COMMIT_VARIABLES)
    return next((text for text in named if _COMMIT.fullmatch(text)), "")


def _git_folder(entry: Path) -> Path:
    """Return the folder of a repository; of a worktree or submodule, ``.git`` is a file that names it."""
    if entry.is_dir():
        return entry
    words = _text(entry)
    if not words.startswith("gitdir:"):
        raise ValueError("not a repository")
    return (entry.parent / words.removeprefix("gitdir:").strip()).resolve()


def _head(folder: Path) -> str:
    head = _text(folder / "HEAD").strip()
    if not head.startswith("ref:"):
        return head if _COMMIT.fullmatch(head) else ""
    name = head.removeprefix("ref:").strip()
    common = folder
    if (folder / "commondir").is_file():  # of a worktree: branches are kept in the main one
        common = (folder / _text(folder / "commondir").strip()).resolve()
    for place in (folder, common):
        try:
            found = _text(place / name).strip()
        except (OSError, ValueError):
            continue
        if _COMMIT.fullmatch(found):
            return found
    for line in _text(common / "packed-refs").splitlines():
        number, _, known = line.partition(" ")
        if known == name and _COMMIT.fullmatch(number):
            return number
    return ""


def _text(path: Path) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read(_LONGEST_BYTES)


_PREFIX, _SUFFIX = "launch.", ".json"
_TURN_FILE = "merging"
#: Fact of a run or launcher while it records on local scratch: where.
RECORDS = "records"
_END_KEYS = ("end_realtime_ns", "end_monotonic_ns", "exit_code", "signal")


def announce(directory: Path, facts: Mapping[str, Any]) -> Path:
    """Make this launcher's file and return its path. Raises CaptureError if it cannot be written."""
    host, pid = str(facts["host"]).replace("/", "_"), facts["launcher_pid"]
    try:
        for number in range(1, 10_000):  # containers may share host name and process ids
            path = directory / f"{_PREFIX}{host}.{pid}{f'.{number}' if number > 1 else ''}{_SUFFIX}"
            try:
                os.close(new_file(path, 0o666))
            except FileExistsError:
                continue
            say(path, facts)
            return path
    except OSError as error:
        raise CaptureError(f"cannot write into run directory {directory}: {error.strerror}") from error
    raise CaptureError(f"run directory {directory} holds too many launchers named {host}.{pid}")


def say(path: Path, facts: Mapping[str, Any]) -> None:
    """Replace the content of a launcher's file, in one step."""
    write_whole(path, json.dumps(dict(facts), indent=1) + "\n")


def launchers(directory: Path) -> list[dict[str, Any]]:
    """Return the content of the launchers' files, in order of begin; files that are being made are left out."""
    parts = []
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError, ValueError):
            parts.append(read_facts(path))
    return sorted(parts, key=lambda facts: (facts.get("begin_realtime_ns") or 0, str(facts.get("host"))))


def still_running(directory: Path) -> list[dict[str, Any]]:
    """Return the launchers that have not ended, as far as this host knows."""
    return [facts for facts in launchers(directory) if "exit_code" not in facts and not is_gone(facts)]


def all_ended(directory: Path, count: int = -1) -> bool:
    """Return True if all launchers in a directory have ended, and there are at least ``count`` of them."""
    return len(launchers(directory)) >= count and not still_running(directory)


@contextlib.contextmanager
def merging_turn(directory: Path) -> Iterator[bool]:
    """Hold the right to merge a directory; yield False if another launcher holds it."""
    path = directory / _TURN_FILE
    try:
        descriptor = new_file(path, 0o666)
    except FileExistsError:
        yield False
        return
    try:
        os.write(descriptor, f"{os.uname().nodename} {os.getpid()}\n".encode())
        os.close(descriptor)
        yield True
    finally:
        path.unlink(missing_ok=True)


def end_turns(directory: Path) -> None:
    """Release the right to merge that a launcher held when it died; for a merge by hand."""
    (directory / _TURN_FILE).unlink(missing_ok=True)


def folded(run: Mapping[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ``run.json`` of a job: it has ended when all launchers have, and failed if one has failed."""
    content = {key: value for key, value in run.items() if key not in (*_END_KEYS, RECORDS)}
    content["parts"] = [{k: v for k, v in part.items() if k != "parts"} for part in parts]
    ended = [part for part in parts if "exit_code" in part]
    failed = sorted((p for p in ended if p["exit_code"]), key=lambda p: p.get("end_realtime_ns", 0))
    if failed or len(ended) == len(parts):
        last = max(ended, key=lambda p: p.get("end_realtime_ns", 0))
        worst = failed[0] if failed else last
        content |= {"exit_code": worst["exit_code"], "signal": worst.get("signal", 0)}
        content["end_realtime_ns"] = last.get("end_realtime_ns", 0)
        # The monotonic clocks of hosts are unrelated, so the wall clock shows the length of the run.
        length_ns = content["end_realtime_ns"] - int(content.get("begin_realtime_ns", content["end_realtime_ns"]))
        content["end_monotonic_ns"] = int(content.get("begin_monotonic_ns", 0)) + max(length_ns, 0)
    return content


def is_gone(facts: Mapping[str, Any]) -> bool:
    """Return True for a launcher of this host and pid namespace whose process does not exist any more."""
    return facts.get("place") == own_place() and not os.path.exists(f"/proc/{facts.get('launcher_pid')}")


def is_running(facts: Mapping[str, Any]) -> bool:
    """Return True for a launcher of this host and pid namespace that has not ended."""
    is_ours = facts.get("place") == own_place() and "launcher_pid" in facts
    return is_ours and "end_realtime_ns" not in facts and not is_gone(facts)


def own_place() -> str:
    """Return the boot id and pid namespace, within which a process id means the same; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
