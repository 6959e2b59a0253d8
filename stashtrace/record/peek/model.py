"""What a look at a process found, its form as text, and whether a rank got on between two moments.

`status`, `analyze hang` and a live alarm share the decision. A rank that others wait for is stuck if it neither entered
what they wait in nor got on with anything else. Long checkpoints, evaluations and compilations do get on: their records
go on, bytes move, or a CPU computes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

#: Ways of getting on, the one that says most first: collectives or steps, other records, bytes of files, the step
#: thread on a CPU, other threads or children on one, the device.
ENTERED, RECORDS, MOVES, RUNS, OTHERS_RUN, DEVICE_RUNS = "entered", "records", "moves", "runs", "others", "device"
#: A process that stands still writes a log or a heartbeat now and then, and the recorder's files grow.
LEAST_BYTES_PER_S = 1 << 20
#: Nor is a message now and then a transfer: one brings a thread this number of wake-ups a second.
LEAST_RECEIVED_PER_S = 10
#: A thread that ran, or waited for a CPU, for less than this share of the time stands still.
STANDS_STILL = 0.05


@dataclass(frozen=True, slots=True)
class Progress:
    """What a rank has done up to a moment; every number only grows, and -1 stands for one that is not known."""

    at_ns: int
    #: Collectives entered and steps ended.
    entered_count: int = -1
    #: Rows of work in the records: phases, batches, spans, calls on files.
    rows_count: int = -1
    #: Bytes that the process and its children read from and wrote to files, or that the kernel wrote back for them.
    moved_bytes: int = -1
    #: How often its step thread was woken while it received from a socket or a pipe: their bytes are counted nowhere.
    received_count: int = -1
    #: Time that the step thread ran, or waited for a CPU.
    thread_run_ns: int = -1
    #: CPU time of the other threads, and of the children: workers, compilers.
    others_run_ns: int = -1
    #: Time that its device computed.
    device_run_ns: int = -1


def way_of_progress(before: Progress, after: Progress) -> str:
    """Return how a rank got on between two moments; empty if it stood still, as far as the numbers say."""
    if _grew(before.entered_count, after.entered_count, 1):
        return ENTERED
    if _grew(before.rows_count, after.rows_count, 1):
        return RECORDS
    window_ns = after.at_ns - before.at_ns
    least_bytes, least_count = (max(each * window_ns / 1e9, 1) for each in (LEAST_BYTES_PER_S, LEAST_RECEIVED_PER_S))
    moved = _grew(before.moved_bytes, after.moved_bytes, least_bytes)
    if moved or _grew(before.received_count, after.received_count, least_count):
        return MOVES
    least_ns = STANDS_STILL * window_ns
    for way, first, second in (
        (RUNS, before.thread_run_ns, after.thread_run_ns),
        (OTHERS_RUN, before.others_run_ns, after.others_run_ns),
        (DEVICE_RUNS, before.device_run_ns, after.device_run_ns),
    ):
        if first >= 0 and second - first > least_ns > 0:
            return way
    return ""


def _grew(before: int, after: int, least: float) -> bool:
    return before >= 0 and after - before >= least


#: Metadata key under which a trace has the peeks at its processes.
PEEK_FACT = "look"
#: State of a process on another host, at which this one cannot look.
ELSEWHERE = "?"
#: Parts of the paths of Python's library, of installed packages, and of our own probes.
_WORKER_LOOP = "/torch/utils/data/_utils/worker.py"
_NOT_OWN = ("/stashtrace/probes/", "/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "<string>")


@dataclass(frozen=True, slots=True)
class ThreadPeek:
    """A thread at one moment."""

    #: As the process itself numbers it.
    tid: int
    #: As Python calls it where its stack was read, else as the kernel does.
    name: str
    #: Letter of the kernel: R runs, S sleeps, D waits in the kernel, T stopped, t traced, Z ended; empty if unknown.
    state: str = ""
    #: Time that it ran, or waited for a CPU; -1 if unknown.
    run_ns: int = -1
    #: Name of the system call that it stands in, empty while it runs and where the kernel does not say.
    call: str = ""
    #: File, pipe or socket of that call; of a wait for a child, its command.
    target: str = ""
    #: Function of the kernel in which it sleeps.
    kernel_function: str = ""
    #: ``function at file:line``, innermost first; empty if its stack was not read.
    frames: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The innermost frame of the job's code, else the innermost one; empty if its stack was not read."""
        return self.own_place or (self.frames[0] if self.frames else "")

    @property
    def own_place(self) -> str:
        """The innermost frame of the job's code; of a worker, inside the loop in which it makes batches."""
        for frame in self.frames:
            if _is_worker_loop(frame):
                return ""  # outside of it are the frames of the process that forked it
            if not any(part in frame.rpartition(" at ")[2] for part in _NOT_OWN):
                return frame
        return ""

    @property
    def in_worker_loop(self) -> bool:
        """Whether its stack shows the main loop of a DataLoader worker."""
        return any(map(_is_worker_loop, self.frames))


def _is_worker_loop(frame: str) -> bool:
    return frame.startswith("_worker_loop ") and _WORKER_LOOP in frame


@dataclass(frozen=True, slots=True)
class Peek:
    """A process at two moments a little apart; the later one counts where nothing else is said."""

    pid: int
    #: The later moment, on the clock of the host (CLOCK_MONOTONIC), and how long before it the other one was.
    at_ns: int
    window_ns: int
    #: Of the process, as of threads; empty if it has ended, ``ELSEWHERE`` if it could not be looked at.
    state: str
    #: The thread asked for.
    thread: ThreadPeek | None = None
    #: Another thread that held the GIL at both moments.
    holder: ThreadPeek | None = None
    #: Between both moments; -1 if unknown.
    thread_ran_ns: int = -1
    others_ran_ns: int = -1
    moved_bytes: int = -1
    #: How often the thread was woken while it received from a socket or a pipe; -1 if it did not, or it is unknown.
    woken_count: int = -1
    #: Commands of children that have ended, and that nobody has waited for.
    ended_children: tuple[str, ...] = field(default=())
    #: What could not be looked at, and why.
    unseen: tuple[str, ...] = field(default=())

    def progress(self) -> tuple[Progress, Progress]:
        """Return both moments as the numbers that decide whether it got on.

        CPU time of a thread that keeps the step thread from the GIL is no progress of this one.
        """
        others = self.others_ran_ns if self.holder is None else -1

        def since(value: int, ends: bool) -> int:
            return -1 if value < 0 else value * ends

        before, after = (
            Progress(
                at,
                moved_bytes=since(self.moved_bytes, ends),
                received_count=since(self.woken_count, ends),
                thread_run_ns=since(self.thread_ran_ns, ends),
                others_run_ns=since(others, ends),
            )
            for at, ends in ((self.at_ns - self.window_ns, False), (self.at_ns, True))
        )
        return before, after

    def to_text(self) -> str:
        """Return it as JSON, without what is empty."""
        return json.dumps(_without_empty(asdict(self)), ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> Peek | None:
        """Return the peek that :meth:`to_text` wrote; None for a text that it did not write."""
        try:
            known = json.loads(text)
            thread, holder = (_thread(known.pop(name, None)) for name in ("thread", "holder"))
            children, unseen = (tuple(map(str, known.pop(name, ()))) for name in ("ended_children", "unseen"))
            peek = cls(**known, ended_children=children, unseen=unseen, thread=thread, holder=holder)
        except (ValueError, TypeError, AttributeError):
            return None
        numbers = (peek.pid, peek.at_ns, peek.window_ns, peek.thread_ran_ns, peek.others_ran_ns, peek.moved_bytes)
        whole = all(isinstance(number, int) for number in (*numbers, peek.woken_count))
        return peek if whole and isinstance(peek.state, str) else None


def _without_empty(stored: dict[str, Any]) -> dict[str, Any]:
    kept = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in stored.items()}
    return {key: value for key, value in kept.items() if key == "state" or value not in ("", -1, (), [], None)}


def _thread(stored: Any) -> ThreadPeek | None:
    if stored is None:
        return None
    frames = tuple(map(str, stored.pop("frames", ())))
    texts = {key: str(value) for key, value in stored.items() if key not in ("tid", "run_ns")}
    texts.setdefault("name", "")
    return ThreadPeek(tid=int(stored["tid"]), run_ns=int(stored.get("run_ns", -1)), frames=frames, **texts)
