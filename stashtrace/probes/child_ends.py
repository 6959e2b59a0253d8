"""Record how child processes ended, by a signal or with which exit code, since only their parent learns it.

Called by the probes of what starts children and waits for them: DataLoader, torchrun, ``mp.spawn``.
``stashtrace analyze killed`` and ``endings`` read the facts.
"""

from __future__ import annotations

import signal
from types import ModuleType
from typing import Any

from stashtrace.probes import native, patching, recorder
from stashtrace.probes.recorder import failed

#: Metadata key: this and the pid; the same in ``analysis/findings/ending/endings.py``.
FACT = "killed "
#: The same of a child that left with an exit code other than 0; in ``analysis/findings/ending/endings.py``.
EXITED = "exited "
_noted: set[int] = set()
#: Limit for a job that restarts its children for ever, whose facts would fill its string table.
_MOST_FACTS = 64


def note(collector: str, pid: int | None, exit_code: int | None, role: str, sender: str = "unknown") -> None:
    """Record how a child ended: once for each child, and nothing for one that runs or has left with 0.

    ``collector``: named in the loss row. ``pid``: none if the child was never started. ``exit_code``: as
    multiprocessing and subprocess give it: minus the signal's number; None while the child runs. ``role``: what the
    child is, for example ``worker 2``. ``sender``: who sent the signal: ``loader``, ``launcher`` or ``unknown``. A
    SIGKILL by nobody known is the ``kernel``'s where it has ended a process for want of memory since this module was
    imported.
    """
    if pid is None or not exit_code or pid in _noted or len(_noted) >= _MOST_FACTS:
        return
    _noted.add(pid)
    if exit_code > 0:
        recorder.record_fact(f"{EXITED}{pid}", f"{exit_code} {role}")
        native.flush()
        return
    name = _name(-exit_code)
    by_kernel = sender == "unknown" and name == "SIGKILL" and _memory_kills() > _KILLS_BEFORE
    recorder.record_fact(f"{FACT}{pid}", f"{name} {'kernel' if by_kernel else sender} {role}")
    if sender == "unknown":
        native.report_loss(
            recorder.collector_code(collector),
            "child_killed",
            1,
            f"{role} (pid {pid}) was killed by {name}",
            recorder.code("Severity", "error"),
        )
    native.flush()  # the parent may be the next to be killed


def _memory_kills() -> int:
    """Return how many processes of our cgroup, or else of the host, the kernel has ended for want of memory.

    It is -1 where no file shows. The files are those of cgroup v2 (memory.events) and v1 (memory.oom_control), and
    /proc/vmstat; each has a line ``oom_kill N``, that of the cgroup also where the host had no memory left.
    """
    files = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            files += [f"/sys/fs/cgroup{path}/memory.events", "/sys/fs/cgroup/memory.events"]
        elif "memory" in controllers.split(","):
            files += [f"/sys/fs/cgroup/memory{path}/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"]
    for file in (*files, "/proc/vmstat"):
        for line in _read(file).splitlines():
            key, _, count = line.partition(" ")
            if key == "oom_kill" and count.isdecimal():
                return int(count)
    return -1


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:  # a kernel or container without it
        return ""


_KILLS_BEFORE = _memory_kills()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal-{number}"


def install_elastic(errors: ModuleType) -> None:
    """Patch ``ProcessFailure``, which torchrun makes for each rank that failed."""
    patching.replace("torch_distributed", errors.ProcessFailure, "__post_init__", _failure, needed=False)


def _failure(original: Any) -> Any:
    def __post_init__(self: Any) -> Any:
        try:
            # torchrun ends all ranks by SIGTERM when one has failed.
            sender = "launcher" if self.exitcode == -signal.SIGTERM else "unknown"
            note("torch_distributed", self.pid, self.exitcode, f"local rank {self.local_rank}", sender)
        except Exception as error:
            failed("torch_distributed", "rank_ends", error)
        return original(self)

    return __post_init__


def install_spawn(spawn: ModuleType) -> None:
    """Patch the exception that ``torch.multiprocessing.spawn`` raises for a process that failed."""
    raised = getattr(spawn, "ProcessExitedException", None)
    if raised is not None:
        patching.replace("torch_distributed", raised, "__init__", _exited, needed=False)


def _exited(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            note("torch_distributed", self.error_pid, self.exit_code, f"process {self.error_index}")
        except Exception as error:
            failed("torch_distributed", "rank_ends", error)

    return __init__
