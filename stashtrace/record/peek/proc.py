"""What ``/proc`` says of a process: at one moment, and whether it got on between two moments.

Everything here is read without stopping the process. What may not be read is None or empty, never a guess: the kernel
shows system calls only to those who may trace the process.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from stashtrace.record.peek.model import Peek, ThreadPeek
from stashtrace.record.peek.stacks import Stacks, read_stacks
from stashtrace.scrubbing.secrets import scrub_arguments

#: (name, whether its first argument is a descriptor, number on x86-64, number on aarch64); -1: it has none there.
_CALLS = (
    ("read", True, 0, 63),
    ("pread", True, 17, 67),
    ("readv", True, 19, 65),
    ("write", True, 1, 64),
    ("pwrite", True, 18, 68),
    ("writev", True, 20, 66),
    ("recv", True, 45, 207),
    ("recvmsg", True, 47, 212),
    ("send", True, 44, 206),
    ("sendmsg", True, 46, 211),
    ("accept", True, 43, 202),
    ("accept", True, 288, 242),
    ("connect", True, 42, 203),
    ("fsync", True, 74, 82),
    ("fdatasync", True, 75, 83),
    ("flock", True, 73, 32),
    ("fcntl", True, 72, 25),
    ("ioctl", True, 16, 29),
    ("fallocate", True, 285, 47),
    ("ftruncate", True, 77, 46),
    ("getdents", True, 217, 61),
    ("sync", False, 162, 81),
    ("open", False, 257, 56),
    ("open", False, 2, -1),
    ("stat", False, 262, 79),
    ("rename", False, 316, 276),
    ("unlink", False, 263, 35),
    ("epoll", False, 281, 22),
    ("epoll", False, 232, -1),
    ("poll", False, 271, 73),
    ("poll", False, 7, -1),
    ("select", False, 270, 72),
    ("select", False, 23, -1),
    ("futex", False, 202, 98),
    ("sleep", False, 35, 101),
    ("sleep", False, 230, 115),
    ("wait", False, 61, 260),
    ("wait", False, 247, 95),
)


@dataclass(frozen=True, slots=True)
class Call:
    """A system call: its name, and whether its first argument is a descriptor."""

    name: str
    on_descriptor: bool


def calls_of(machine: str) -> dict[int, Call]:
    """Return the calls of a machine, as ``uname -m`` names it, by number; empty for one that is not known."""
    column = {"x86_64": 2, "aarch64": 3}.get(machine)
    if column is None:
        return {}
    return {int(row[column]): Call(row[0], row[1]) for row in _CALLS if int(row[column]) >= 0}


CALLS = calls_of(platform.machine())
#: A thread in one of these receives; of a file, the bytes are counted.
RECEIVES = frozenset({"read", "readv", "recv", "recvmsg"})
#: A thread in one of these writes to storage, and may be in it as long as that takes.
WRITES_BACK = frozenset({"write", "pwrite", "writev", "fsync", "fdatasync", "sync", "fallocate", "ftruncate", "rename"})


_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = 1024  # pgpgout counts KiB
_MOST_PROCESSES = 512
#: Names of the recorder's threads begin so (csrc/runtime/drainer.cpp and the others that set PR_SET_NAME).
_RECORDER = "stashtrace"


@dataclass(frozen=True, slots=True)
class Moment:
    """Sums of a process and of all below it, without what the recorder's threads in them did; -1 if unknown."""

    state: str
    run_ns: int
    moved_bytes: int
    #: Bytes that the host has written back.
    written_back_bytes: int


def read_moment(pid: int) -> Moment | None:
    """Return where a process is now; None if it has ended."""
    fields = stat_fields(f"/proc/{pid}/stat")
    if fields is None:
        return None
    run_ns, moved = 0, 0
    known = True
    for one in [pid, *descendants(pid)]:
        chosen = fields if one == pid else stat_fields(f"/proc/{one}/stat")
        if chosen is None:
            continue  # it has ended meanwhile, and its time is in that of its parent
        ours = _recorder_threads(one)
        of_ours = [of_thread for folder in ours if (of_thread := stat_fields(f"{folder}/stat")) is not None]
        ticks = sum(int(chosen[at]) for at in (11, 12, 13, 14))
        run_ns += (ticks - sum(int(of_thread[at]) for of_thread in of_ours for at in (11, 12))) * _TICK_NS
        bytes_of = _moved_bytes(one, ours)
        known = known and (bytes_of >= 0 or one != pid)
        moved += max(bytes_of, 0)
    return Moment(fields[0], run_ns, moved if known else -1, _written_back())


def _recorder_threads(pid: int) -> list[str]:
    """Return the folders of the recorder's threads: it samples whether or not the job gets on.

    Where it samples stacks, it copies some MB of them a second by writing to a file in memory (csrc/stacks/memory.cpp).
    """
    return [folder for folder in _threads(pid) if _read(f"{folder}/comm").startswith(_RECORDER)]


def read_thread(pid: int, tid: int) -> ThreadPeek | None:
    """Return where a thread is now; ``tid`` as the process itself numbers it; None if it has ended."""
    outer = outer_tid(pid, tid)
    folder = f"/proc/{pid}/task/{outer}"
    fields = stat_fields(f"{folder}/stat")
    if fields is None:
        return None
    scheduled = _read(f"{folder}/schedstat").split()
    run_ns = int(scheduled[0]) + int(scheduled[1]) if len(scheduled) > 1 else -1
    call, target = _standing_call(pid, _read(f"{folder}/syscall"))
    asleep = _read(f"{folder}/wchan")
    return ThreadPeek(
        tid=tid,
        name=_read(f"{folder}/comm").strip(),
        state=fields[0],
        run_ns=run_ns,
        call=call,
        target=target,
        kernel_function="" if asleep == "0" else asleep,
    )


def may_see_calls(pid: int) -> bool:
    """Return whether the kernel shows us the system calls of a process."""
    return bool(_read(f"/proc/{pid}/syscall"))


def writes_back(thread: ThreadPeek) -> bool:
    """Return whether a thread waits in the kernel for storage to take what was written."""
    return thread.state == "D" and thread.call in WRITES_BACK


def receives(thread: ThreadPeek) -> bool:
    """Return whether a thread receives from a socket or a pipe."""
    return thread.call in RECEIVES and thread.target.startswith(("socket:", "pipe:"))


def woken_count(pid: int, tid: int) -> int:
    """Return how often a thread has gone to sleep by itself, and so how often it was woken; -1 if unknown."""
    for line in _read(f"/proc/{pid}/task/{outer_tid(pid, tid)}/status").splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    return -1


def ended_children(pid: int) -> tuple[str, ...]:
    """Return the commands of children that have ended and that the process has not waited for."""
    found = []
    for child in _children(pid):
        fields = stat_fields(f"/proc/{child}/stat")
        if fields is not None and fields[0] == "Z":
            found.append(_read(f"/proc/{child}/comm").strip())
    return tuple(found)


def descendants(pid: int) -> list[int]:
    """Return the processes below a process, as far as the kernel lists them."""
    found: list[int] = []
    left = [pid]
    while left and len(found) < _MOST_PROCESSES:
        for child in _children(left.pop()):
            found.append(child)
            left.append(child)
    return found


def stat_fields(path: str) -> list[str] | None:
    """Return the fields of a ``stat`` file after the name, the state first; None if the process has ended."""
    fields = _read(path).rpartition(")")[2].split()
    return fields if len(fields) > 20 and fields[0] not in ("X", "x") else None


def _children(pid: int) -> Iterable[int]:
    for thread in _threads(pid):
        yield from map(int, _read(f"{thread}/children").split())


def _threads(pid: int) -> list[str]:
    """Return the folders of the threads of a process; none of one that has ended."""
    try:
        return [f"/proc/{pid}/task/{tid}" for tid in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def outer_tid(pid: int, tid: int) -> int:
    """Return the number that this host has for a thread which a container numbers on its own."""
    if tid == pid or os.path.exists(f"/proc/{pid}/task/{tid}"):
        return tid
    for thread in _threads(pid):
        for line in _read(f"{thread}/status").splitlines():
            if line.startswith("NSpid:") and line.split()[-1] == str(tid):
                return int(os.path.basename(thread))
    return tid


def own_tid(pid: int, tid: int) -> int:
    """Return the number that a process has for one of its threads, which this host numbers ``tid``."""
    for line in _read(f"/proc/{pid}/task/{tid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return tid


def _moved_bytes(pid: int, without: Iterable[str]) -> int:
    """Return the bytes that a process moved, less those of some of its threads; -1 if unknown."""
    counts = _io_counts(f"/proc/{pid}")
    if not counts:
        return -1
    for thread in without:
        counts.subtract(_io_counts(thread))
    asked = counts["rchar"] + counts["wchar"]  # of the page cache, too, but not through mappings
    return max(asked, counts["read_bytes"] + counts["write_bytes"])


def _io_counts(folder: str) -> Counter[str]:
    lines = (line.partition(":") for line in _read(f"{folder}/io").splitlines())
    return Counter({name: int(value) for name, _, value in lines})


def _written_back() -> int:
    for line in _read("/proc/vmstat").splitlines():
        if line.startswith("pgpgout "):
            return int(line.split()[1]) * _PAGE_BYTES
    return -1


def _standing_call(pid: int, text: str) -> tuple[str, str]:
    """Return name and target of the call in a ``syscall`` file; empty while the thread runs, or is in another one."""
    words = text.split()
    if len(words) < 7 or not words[0].isdecimal():  # "running"; -1 of a thread that waits outside of calls
        return "", ""
    known = CALLS.get(int(words[0]))
    if known is None:
        return f"system call {words[0]}", ""
    if known.on_descriptor:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}")
        except OSError:
            target = ""
        return known.name, scrub_arguments([target])[0]
    if known.name == "wait":
        return known.name, _only_child(pid)
    return known.name, ""


def _only_child(pid: int) -> str:
    names = {_read(f"/proc/{child}/comm").strip() for child in _children(pid)}
    return names.pop() if len(names) == 1 else ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # it has ended, or we may not look
        return ""


#: Between both moments. A thread that computes, or moves bytes, shows it within this time.
WINDOW_S = 1.0
#: How it begins that a stack was not read; what follows says why.
STACK_NOT_READ = "its Python stack was not read"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A process to look at: its number on this host, and its thread as the process itself numbers it."""

    pid: int
    tid: int
    #: Whether its Python stacks are read.
    stacks: bool = True


@dataclass(frozen=True, slots=True)
class _First:
    at_ns: int
    moment: Moment | None
    thread: ThreadPeek | None
    woken_count: int
    stacks: Stacks


def take_peeks(wanted: Mapping[int, Wanted], window_s: float = WINDOW_S) -> dict[int, Peek]:
    """Look at processes, all of them at nearly the same two moments; the keys are the caller's."""
    first = {key: _peek_once(one) for key, one in wanted.items()}
    if first:
        time.sleep(window_s)
    return {key: _compare(wanted[key], before, _peek_once(wanted[key])) for key, before in first.items()}


def _peek_once(wanted: Wanted) -> _First:
    at_ns = time.monotonic_ns()
    moment, thread = read_moment(wanted.pid), read_thread(wanted.pid, wanted.tid)
    woken = woken_count(wanted.pid, wanted.tid)
    return _First(at_ns, moment, thread, woken, read_stacks(wanted.pid) if wanted.stacks and moment else Stacks({}))


def _compare(wanted: Wanted, before: _First, after: _First) -> Peek:
    window_ns = after.at_ns - before.at_ns
    if before.moment is None or after.moment is None:
        return Peek(wanted.pid, after.at_ns, window_ns, "")
    unseen = [f"{STACK_NOT_READ}: {after.stacks.unseen}"] if after.stacks.unseen else []
    if not may_see_calls(wanted.pid):
        unseen.append("its system calls are not shown to this user")
    thread = after.thread
    ran = others = -1
    if before.thread is not None and thread is not None and min(before.thread.run_ns, thread.run_ns) >= 0:
        ran = thread.run_ns - before.thread.run_ns
        others = max(after.moment.run_ns - before.moment.run_ns - ran, 0)
    if thread is not None:
        thread = _with_stack(thread, after.stacks, outer_tid(wanted.pid, wanted.tid))
    return Peek(
        wanted.pid,
        after.at_ns,
        window_ns,
        after.moment.state,
        thread,
        _holder(wanted, before.stacks, after.stacks),
        ran,
        others,
        _moved(before, after),
        _woken(before, after),
        ended_children(wanted.pid),
        tuple(unseen),
    )


def _moved(before: _First, after: _First) -> int:
    """Return the bytes moved between both moments; in a wait for storage, what the host wrote back in that time."""
    first, second = before.moment, after.moment
    if first is None or second is None or min(first.moved_bytes, second.moved_bytes) < 0:
        return -1
    moved = second.moved_bytes - first.moved_bytes
    if all(once.thread is not None and writes_back(once.thread) for once in (before, after)):
        moved += max(second.written_back_bytes - first.written_back_bytes, 0)
    return moved


def _woken(before: _First, after: _First) -> int:
    """Return how often the thread was woken in between, if it received at one of both moments."""
    received = any(once.thread is not None and receives(once.thread) for once in (before, after))
    return after.woken_count - before.woken_count if received and before.woken_count >= 0 else -1


def _holder(wanted: Wanted, before: Stacks, after: Stacks) -> ThreadPeek | None:
    """Return the thread that kept the GIL from the step thread at both moments."""
    first, second = before.holder(), after.holder()
    if first is None or second is None or first.tid != second.tid or second.tid == outer_tid(wanted.pid, wanted.tid):
        return None
    thread = read_thread(wanted.pid, second.tid)
    return None if thread is None else _with_stack(thread, after, second.tid)


def _with_stack(thread: ThreadPeek, stacks: Stacks, tid: int) -> ThreadPeek:
    stack = stacks.by_thread.get(tid)
    return thread if stack is None else replace(thread, name=stack.name or thread.name, frames=stack.frames)
