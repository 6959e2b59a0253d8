"""What a look at a process found, and its form as text, in which a run keeps it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from stashtrace.record.look.progress import Progress

#: Metadata key under which a trace has the looks at its processes.
LOOK_FACT = "look"
#: State of a process on another host, at which this one cannot look.
ELSEWHERE = "?"
#: Parts of the paths of Python's library, of installed packages, and of our own probes.
_WORKER_LOOP = "/torch/utils/data/_utils/worker.py"
_NOT_OWN = ("/stashtrace/probes/", "/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "<string>")


@dataclass(frozen=True, slots=True)
class ThreadLook:
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
        """The innermost frame of the job's own code, else the innermost one; empty if its stack was not read."""
        return self.own_place or (self.frames[0] if self.frames else "")

    @property
    def own_place(self) -> str:
        """The innermost frame of the job's own code; of a worker, inside the loop in which it makes batches."""
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
class Look:
    """A process at two moments a little apart; the later one counts where nothing else is said."""

    pid: int
    #: The later moment, on the clock of the host (CLOCK_MONOTONIC), and how long before it the other one was.
    at_ns: int
    window_ns: int
    #: Of the process, as of threads; empty if it has ended, ``ELSEWHERE`` if it could not be looked at.
    state: str
    #: The thread asked for.
    thread: ThreadLook | None = None
    #: Another thread that held the GIL at both moments.
    holder: ThreadLook | None = None
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
    def from_text(cls, text: str) -> Look | None:
        """Return the look that :meth:`to_text` wrote; None for a text that it did not write."""
        try:
            told = json.loads(text)
            thread, holder = (_thread(told.pop(name, None)) for name in ("thread", "holder"))
            children, unseen = (tuple(map(str, told.pop(name, ()))) for name in ("ended_children", "unseen"))
            look = cls(**told, ended_children=children, unseen=unseen, thread=thread, holder=holder)
        except (ValueError, TypeError, AttributeError):
            return None
        numbers = (look.pid, look.at_ns, look.window_ns, look.thread_ran_ns, look.others_ran_ns, look.moved_bytes)
        whole = all(isinstance(number, int) for number in (*numbers, look.woken_count))
        return look if whole and isinstance(look.state, str) else None


def _without_empty(told: dict[str, Any]) -> dict[str, Any]:
    kept = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in told.items()}
    return {key: value for key, value in kept.items() if key == "state" or value not in ("", -1, (), [], None)}


def _thread(told: Any) -> ThreadLook | None:
    if told is None:
        return None
    frames = tuple(map(str, told.pop("frames", ())))
    texts = {key: str(value) for key, value in told.items() if key not in ("tid", "run_ns")}
    texts.setdefault("name", "")
    return ThreadLook(tid=int(told["tid"]), run_ns=int(told.get("run_ns", -1)), frames=frames, **texts)
