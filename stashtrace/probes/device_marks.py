"""Marks on the device's clock: where steps end, where phases begin, and how long the loader is waited for.

The step, loader and annotation probes call this on the thread that drives the device. The native half records a timing
event on the thread's current stream and reads it later; nothing here waits for the device. In a process whose framework
has not initialised CUDA, a call costs two dictionary look-ups.

Mark k says that step k begins, so that step i lies between the marks i and i + 1. If a step has several updates, the
last mark of a number counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stashtrace.probes import native, process, recorder
from stashtrace.probes.process import window

COLLECTOR = "cuda"
_BATCH_WAIT = recorder.code("Bracket", "batch_wait")
_STEP = recorder.code("Bracket", "step")
_MARK = recorder.code("Bracket", "mark")


class DeviceMarks:
    """Writes marks to the current stream of the framework that drives the device.

    ``marked_step``: largest number of a step mark so far, -1 before the first.
    """

    def __init__(self) -> None:
        self.marked_step = -1
        self._stream: Callable[[], int] | None = None
        self._off = "cuda" not in native.config()["collectors"]

    def forget(self) -> None:
        """Forget the device, in a forked child: the parent's context does not work there."""
        self._stream = None

    def _current_stream(self) -> Callable[[], int] | None:
        """Return the function that returns the thread's current stream; None as long as nothing uses a device."""
        if self._off:
            return None
        if self._stream is None:
            try:
                if not native.device_active():
                    return None
                self._stream = _torch_stream() or _cupy_stream()
            except Exception as error:
                self._off = True
                recorder.unavailable(COLLECTOR, "stream_not_known", repr(error))
        return self._stream

    def update_ends(self) -> None:
        """The optimizer has launched an update, which ends the step unless the user marks the steps."""
        if not window.marked_by_user:
            self.step_ends()

    def step_ends(self) -> None:
        """All of step ``window.step`` has been launched."""
        stream = self._current_stream()
        if stream is not None and window.open:
            self._mark(stream, window.step + 1)

    def phase_begins(self) -> None:
        """Forward or backward begins: mark how far the host leads, or the begin of the step if it is not marked."""
        stream = self._current_stream()
        if stream is None or not window.open:
            return
        if self.marked_step < window.step:
            self._mark(stream, window.step)
        else:
            native.device_mark(_MARK, stream(), 0)

    def wait_begins(self) -> int:
        """The loader is asked for a batch; pass the result to :meth:`wait_ends`."""
        stream = self._current_stream()
        if stream is None:
            return 0
        if self.marked_step < window.step:
            self._mark(stream, window.step)
        return native.device_bracket_begin(_BATCH_WAIT, stream(), 0)

    def wait_ends(self, token: int, batch_index: int) -> None:
        """The batch has come; its index is -1 if the loader had none left."""
        if token:
            native.device_bracket_end(token, batch_index & 0xFFFF_FFFF_FFFF_FFFF)

    def _mark(self, stream: Callable[[], int], number: int) -> None:
        native.device_mark(_STEP, stream(), number)
        self.marked_step = max(self.marked_step, number)


def _torch_stream() -> Callable[[], int] | None:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not getattr(cuda, "is_initialized", bool)():
        return None
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    device = getattr(torch._C, "_cuda_getDevice", None)
    if raw is not None and device is not None:  # a twentieth of the cost of current_stream()
        return lambda: int(raw(device()))
    return lambda: int(cuda.current_stream().cuda_stream)


def _cupy_stream() -> Callable[[], int] | None:
    cupy: Any = sys.modules.get("cupy")
    current = getattr(getattr(cupy, "cuda", None), "get_current_stream", None)
    return None if current is None else lambda: int(current().ptr)


device_marks = DeviceMarks()
process.in_forked_child(device_marks.forget)
