"""A Python process that imports torch: where recording begins and ends, the state of its threads, its window of steps.

``bootstrap`` calls :func:`begin` before it installs the first probe. That starts the drainer, since the process is a
rank or a worker by now; at exit :func:`end` writes what the probes cost. No signal handler is registered.
"""

from __future__ import annotations

import atexit
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from stashtrace.probes import exceptions, native, recorder

#: Of deeper steps: bytes of the file; where the number of the request stands, and the request (as ``record.follower``).
_SIZE, _NUMBER_AT, _REQUEST_AT = 64, 1, 8
#: First step, how many (0: no more), what one usually takes, and what all may take longer, both in ns.
_REQUEST = struct.Struct("<QQQQ")
#: Answers of the recorder.
_LATER, _TAKEN = 0, 1


class DeeperSteps:
    """Deep mode for steps that the launcher's side asks for while the job runs.

    It asks by the file that the processes of a run map (``record.follower``). The first step is the same on all ranks;
    one that has come further begins with its next step, so that each records the same number. A rank ends deep mode by
    itself when its steps have used up the time that they may take longer than usual. ``control``: the file.
    """

    def __init__(self, control: mmap.mmap) -> None:
        self._control = control
        self._number = control[_NUMBER_AT]  # one of before this process is none of its own
        self._wanted: tuple[int, int, int, int] | None = None
        #: The steps that are or will be recorded; -1 for none.
        self._first = self._end = -1
        self._usual_ns = self._budget_ns = 0
        #: When the step before the first one began, in which the recorder gets ready; -1 before.
        self._begin_ns = -1
        self._ends = False

    def look(self, step: int) -> None:
        """Take what was asked for since the last step. ``step``: which begins now."""
        if self._control[_NUMBER_AT] != self._number:
            self._number = self._control[_NUMBER_AT]
            self._wanted = _REQUEST.unpack_from(self._control, _REQUEST_AT)
            if not self._wanted[1]:
                self._wanted, self._ends = None, self._end >= 0
        if self._wanted is not None:
            self._ask(step, *self._wanted)
        elif self._end >= 0:
            self._ends = self._ends or self._is_used_up(step)
            if step >= self._end or (self._ends and native.kernels_end(step)):
                self._first = self._end = self._begin_ns = -1
                self._ends = False

    def _is_used_up(self, step: int) -> bool:
        """Return whether the steps have used up the time that they may take longer than usual."""
        if step < self._first - 1:
            return False
        now_ns = time.monotonic_ns()
        if self._begin_ns < 0:
            self._begin_ns = now_ns
        usual_ns = (step - self._first + 1) * self._usual_ns
        return now_ns - self._begin_ns > usual_ns + self._budget_ns

    def _ask(self, step: int, first: int, count: int, usual_ns: int, budget_ns: int) -> None:
        first = max(first, step + 1)  # the recorder needs one step to get ready
        answer = native.kernels_window(first, first + count)
        if answer == _LATER:
            return
        self._wanted = None
        if answer == _TAKEN:
            self._first, self._end, self._ends = first, first + count, False
            self._usual_ns, self._budget_ns, self._begin_ns = usual_ns, budget_ns, -1
            self._is_used_up(step)


def follow_requests() -> DeeperSteps | None:
    """Return what follows the requests; None where nobody makes any."""
    if os.environ.get("STASHTRACE_FOLLOWED") != "1":
        return None
    path = find_control(os.environ.get("STASHTRACE_DIR", ""))
    if not path:
        return None  # the launcher is on another host
    control = _mapped(path, _SIZE, "cupti")
    return None if control is None else DeeperSteps(control)


def _mapped(path: str, size: int, collector: str) -> mmap.mmap | None:
    """Map the begin of a file; None, and a note for a collector, if that fails."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        recorder.failed(collector, "control", error)
        return None


def find_control(directory: str) -> str:
    """Return the path of the file, empty if there is none: a container may have another name than its launcher."""
    own = os.path.join(directory, f"control-{os.uname().nodename}")
    if os.path.exists(own):
        return own
    try:
        names = [name for name in os.listdir(directory) if name.startswith("control-")]
    except OSError:
        return ""
    return os.path.join(directory, names[0]) if len(names) == 1 else ""


_before_end: list[Callable[[], None]] = []
_in_child: list[Callable[[], None]] = []
_pid = 0


def begin(*, ends_itself: bool = False) -> None:
    """Start recording in this process; a second call does nothing.

    ``ends_itself``: whether the caller calls :func:`end`; if not, it is registered as a finalizer in children of
    multiprocessing.
    """
    global _pid
    if _pid == os.getpid():
        return
    first = _pid == 0
    _pid = os.getpid()
    native.start_drainer()
    recorder.cost.calibrate()
    if first:
        atexit.register(end)
        os.register_at_fork(after_in_child=_forked)
        exceptions.watch()
        exceptions.watch_children()
    elif not ends_itself:
        from multiprocessing.util import Finalize

        # Children of multiprocessing end by os._exit, without atexit.
        Finalize(None, end, exitpriority=0)


def before_end(action: Callable[[], None]) -> None:
    """Register ``action`` for the end of the process; the newest runs first."""
    _before_end.append(action)


def in_forked_child(action: Callable[[], None]) -> None:
    """Register ``action`` for a child, right after ``fork``; it may only reset Python objects."""
    _in_child.append(action)


def end() -> None:
    """Write what has been gathered. Runs at exit, and at the end of a DataLoader worker, which skips ``atexit``."""
    if _pid != os.getpid():
        return
    exceptions.look()
    for action in reversed(_before_end):
        try:
            action()
        except Exception as error:
            recorder.failed("core", "end_of_process", error)
    recorder.record_cost()
    native.flush()


def _forked() -> None:
    # _pid stays the parent's, so that a child that does not use torch again starts no thread.
    recorder.cost.forget()
    exceptions.forked()
    for action in _in_child:
        action()


class ThreadState(threading.local):
    """What the probes remember of a thread, so that each knows where it was called from.

    A forked child starts with fresh state, since only the forking thread lives on.

    ``is_step_thread``: drives the optimizer, or calls ``stashtrace.step()``. ``in_backward``: inside the autograd
    engine. ``open_updates``: optimizer steps entered and not left, with their begin stamps. ``functional``: inside an
    operator of ``_c10d_functional``. ``in_checkpoint``: inside a save or a load. ``updates``: optimizer steps made by
    this thread. ``received``, ``received_from``, ``receive_begin``: the batch last taken from a queue: its index and
    loader, and what ``probe_begins`` gave when its bytes came. ``in_pin``: inside ``pin_memory``, which calls itself.
    ``lingering``, ``launches``: the collective that this thread launched last, if it is still held, and how many it has
    launched. ``gc_begin``: ticks at which the running collection began. ``compiling``, ``compile_begin``: inside a
    compilation of a frame by Dynamo; ticks at which one of what runs for the first time began. ``in_library``: inside a
    call that ``host_calls.timed_calls`` times. ``stack_watched``: whether its Python stacks are sampled.
    """

    is_step_thread = False
    in_backward = False
    functional = False
    in_checkpoint = False
    updates = 0
    #: tuple or None; Loader, index and worker of the batch that is waited for or made.
    batch: tuple[Any, int, int] | None = None
    received = -1
    received_from: Any = None
    receive_begin: bytes | None = None
    in_pin = False
    lingering: Any = None
    launches = 0
    #: The collective that this operator has launched.
    functional_launch: Any = None
    gc_begin = 0
    compiling = False
    compile_begin = 0
    in_library = False
    stack_watched = False

    def __init__(self) -> None:
        self.open_updates: list[tuple[int, Any]] = []


thread_state = ThreadState()


def mark_step_thread() -> None:
    """Make this thread the step thread, whose blocking waits are recorded: it drives the optimizer or marks steps."""
    if not thread_state.is_step_thread:
        thread_state.is_step_thread = True
        native.set_thread_role(recorder.code("ThreadRole", "step"), threading.current_thread().name)
        native.watch_waits(True)


def _forget() -> None:
    thread_state.__dict__.clear()
    native.forget_outermost_call()
    thread_state.open_updates = []


in_forked_child(_forget)


class StepWindow:
    """Counts steps, and pauses the recorder outside those of STASHTRACE_STEPS.

    ``torch.step`` says when an update was made and when the next forward begins, ``annotations`` when the user marks a
    step. After the first mark by the user, only marks end steps.

    ``steps``: ``"A:B"``, ``"A:"``, ``":B"`` or empty for all. ``control``: says whether to record, in place of the
    steps (``run --idle``). ``deeper``: called for each step. ``step``: number of steps that have ended. ``open``:
    whether probes should record now. ``begins``: whether recording begins with this step. ``marked_by_user``: whether
    ``stashtrace.step()`` has been called, so that nothing else ends a step.
    """

    def __init__(self, steps: str, control: mmap.mmap | None = None, deeper: DeeperSteps | None = None) -> None:
        first, _, last = steps.partition(":")
        self._first = int(first) if first.isdecimal() else 0
        self._last = int(last) if last.isdecimal() else None
        self._updated = False
        self.marked_by_user = False
        self._announced = -1
        goal = os.environ.get("STASHTRACE_UNTIL_STEP", "")
        self._goal = int(goal) if goal.isdecimal() else None
        self.step = 0
        self._control = control
        self._deeper = deeper
        self.begins = False
        self._followers: list[Callable[[bool], bool]] = []
        self._late: list[Callable[[bool], bool]] = []
        #: Whether the launcher's side says when to record, and when the user's mark of this step came.
        self.is_controlled = control is not None
        self.mark_ns = 0
        self.open = True
        self._apply()

    def _apply(self) -> None:
        if self._control is not None:
            self.follow()
            if self.begins:
                begin_ns = self.mark_ns or time.monotonic_ns()
                recorder.record_fact("step_begins", f"{self.step} {begin_ns}")
            return
        open_now = self._first <= self.step and (self._last is None or self.step < self._last)
        if open_now != self.open:
            self.open = open_now
            native.set_recording(open_now)

    def follow(self) -> None:
        """Record from now on, or no longer, where the launcher's side says when."""
        self.begins = False
        if self._control is None:
            return
        if (self._control[0] != 0) != self.open:
            self.open = self.begins = not self.open
            self._late = [*self._followers]
            if not self.open:
                native.set_recording(False)
            self._tell_followers()
            if self.open:
                native.set_recording(True)
        elif self._late:
            self._tell_followers()

    def on_change(self, action: Callable[[bool], bool]) -> None:
        """In an idle run, call ``action`` with whether recording is on, now and at each change of it.

        It is called between two steps and returns whether it is done; if not, it is called again after the next step.
        """
        if self._control is not None:
            self._followers.append(action)
            self._late.append(action)

    def _tell_followers(self) -> None:
        late, self._late = self._late, []
        for action in late:
            try:
                if not action(self.open):
                    self._late.append(action)
            except Exception as error:
                recorder.failed("core", "pause", error)

    def always(self) -> None:
        """Record everything from now on; for workers, which do not know the steps that their batches belong to.

        Where the launcher's side says when, it says so to them, too.
        """
        self._first, self._last = 0, None
        if self._control is None:
            self._apply()
        else:
            self.follow()

    def updated(self) -> None:
        """The optimizer has made an update; the step ends before the next forward or batch wait."""
        self._updated = True

    def forward_begins(self) -> None:
        """An outermost forward begins, or the step thread asks for a batch, with which the next step begins."""
        if self._updated:
            self._updated = False
            if not self.marked_by_user:
                self.step += 1
                self._apply()
        if self._announced != self.step:
            self._tell()

    def marked(self) -> None:
        """The user has marked the end of a step."""
        self.marked_by_user = True
        self.step += 1
        self._apply()
        self._tell()

    def _tell(self) -> None:
        """Inform deep mode, and the launcher if it waits for this step, which step has begun."""
        self._announced = self.step
        if self._deeper is not None:
            self._deeper.look(self.step)
        native.kernels_step(self.step)
        if self._goal is not None and self.step >= self._goal:
            self._goal = None
            self._report_goal()

    def _report_goal(self) -> None:
        """Leave a file for the launcher, which ends the job when each rank has left one (STASHTRACE_UNTIL_STEP)."""
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
        name = f"{os.uname().nodename}.{os.getpid()}.{ranks if ranks.isdecimal() else 1}.reached"
        try:
            path = os.path.join(os.environ["STASHTRACE_DIR"], name)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o644))
        except FileExistsError:
            return  # it was left before, by a process whose place this one has taken
        except (OSError, KeyError) as error:
            recorder.failed("torch_step", "until_step", error)


def _open_control() -> mmap.mmap | None:
    """Map the file that says when to record (``record.follower``); None unless the run is idle."""
    if os.environ.get("STASHTRACE_IDLE") != "1":
        return None
    directory = os.environ.get("STASHTRACE_DIR", "")
    return _mapped(find_control(directory) or os.path.join(directory, "control"), 1, "core")


window = StepWindow(native.config().get("steps") or "", _open_control(), follow_requests())
