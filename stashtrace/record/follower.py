"""Start the process that follows a run while it records, and end it with the run.

It is a separate program (``stashtrace.live.follower``): the launcher does not load numpy, and a fault there costs
nothing here.

The processes of the job learn what it wants by a file that each of them maps, since to look at it is no system call:

byte 0       when to record (``run --idle``): 0 for nothing, else the number of the period, from 1 to 255 and again
byte 1       number of the newest request for deeper steps, likewise; 0 before the first
bytes 8-31   that request: first step, how many (0: no more of them), nanoseconds that they may take
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from stashtrace.errors import CaptureError
from stashtrace.record.gpu.inventory import quiet_environment
from stashtrace.record.program import own_program

_CONTROL = "control-{host}"
#: ``probes.process`` knows these too.
_SIZE, _NUMBER_AT, _REQUEST_AT = 64, 1, 8
_REQUEST = struct.Struct("<QQQQ")
#: It makes one more round when the job has ended; if that takes longer, it is left behind.
_PATIENCE_S = 30.0


class Follower:
    """The process that follows a run.

    ``directory``: where the processes of this host write. ``arguments``: of the program. ``environment``: of the
    process, without our variables. ``sockets``: that it takes over, under the same numbers. ``error``: why it
    could not be started, empty if it was.
    """

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        self.error = ""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                own_program("stashtrace.live.follower", str(directory), *arguments),
                env=quiet_environment(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[one.fileno() for one in sockets],
            )
        except OSError as error:
            self.error = error.strerror or str(error)
        for one in sockets:
            one.close()

    @property
    def pid(self) -> int:
        """Its process id, -1 if it was not started."""
        return -1 if self._process is None else self._process.pid

    def ask_for_window(self) -> bool:
        """Let it seal a window of the newest steps; return False if it does not listen any more."""
        if self._process is None or self._process.stdin is None:
            return False
        try:
            os.set_blocking(self._process.stdin.fileno(), False)
            os.write(self._process.stdin.fileno(), b"w")
        except BlockingIOError:
            return True  # it has been asked some 65,000 times and not looked yet
        except OSError:
            return False
        return True

    def end(self) -> bool:
        """Let it make its last round; return whether it ended in order."""
        if self._process is None:
            return False
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            return self._process.wait(_PATIENCE_S) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False


def control_path(directory: Path) -> Path:
    """Return the path of the file of this host; ``probes.process`` knows it too."""
    return directory / _CONTROL.format(host=os.uname().nodename)


def make_control(directory: Path) -> Path:
    """Make the file, unless another launcher of this host has; nothing is recorded then.

    Raises CaptureError if it cannot be written.
    """
    path = control_path(directory)
    try:
        with open(path, "ab") as file:
            if not file.tell():
                file.write(bytes(_SIZE))
    except OSError as error:
        raise CaptureError(f"cannot write {path}: {error.strerror}") from error
    return path


def set_period(directory: Path, number: int) -> None:
    """Let the processes record, or not (0). Errors of the system are raised as they are."""
    with open(control_path(directory), "r+b") as file:
        file.write(bytes([number]))


def ask_for_deeper_steps(
    directory: Path, first_step: int = 0, count: int = 0, usual_ns: int = 0, budget_ns: int = 0
) -> None:
    """Let the ranks record their kernels for some steps; ``count`` 0 for no more of them.

    ``usual_ns``: of a step. ``budget_ns``: that the steps may take longer in all; a rank ends when it is used up.
    Errors of the system are raised as they are.
    """
    with open(control_path(directory), "r+b") as file:
        file.seek(_NUMBER_AT)
        number = file.read(1)[0] % 255 + 1
        file.seek(_REQUEST_AT)
        file.write(_REQUEST.pack(first_step, count, usual_ns, budget_ns))
        file.flush()  # before its number, by which it is seen
        file.seek(_NUMBER_AT)
        file.write(bytes([number]))
