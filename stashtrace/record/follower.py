"""Start the process that follows a run while it records, and end it with the run.

It is a program of its own (``stashtrace.live.follower``): the launcher does not load numpy, and a fault there costs
nothing here.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from stashtrace.record.gpu.inventory import quiet_environment
from stashtrace.record.program import own_program

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
