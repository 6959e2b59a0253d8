"""Tells whether a signal that reached us was sent to our process group, and so reached the job as well.

The job runs in our group. Whoever signals the group (a terminal, ``kill -- -GROUP``, ``timeout``) reaches the job by
the kernel, whoever signals us alone does not, and the kernel tells a process no difference. So a second process stands
in the group, with every signal blocked: what is pending there was sent to the group. That is no guess about time: the
kernel signals a group while it holds its list of processes, and :meth:`GroupWitness.sent_to_group` waits for that list.

This file is also the program of the second process, so it imports the standard library alone.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import time
from pathlib import Path

#: A signal number and the process that sent it; number 0 ends an answer.
_ENTRY = struct.Struct("=ii")
#: Where a Python that was not installed for the whole system finds its own library.
_LOADING = ("LD_LIBRARY_PATH",)
_SHORTEST_WAIT_S, _LONGEST_WAIT_S, _POLL_S = 0.02, 1.0, 0.002


class GroupWitness:
    """Starts the second process; without one every signal counts as sent to us alone, unless by a terminal.

    All signals that are asked about must be blocked before this is made, and the job started after.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._questions = self._answers = -1
        self._not_taken: set[tuple[int, int]] = set()
        if not sys.executable:
            return
        asked, self._questions = os.pipe()
        self._answers, told = os.pipe()
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ]
        words = [sys.executable, "-I", "-S", __file__, str(asked), str(told)]
        # Nothing else of the environment: it is not to be traced, should we be traced ourselves.
        kept = {name: os.environ[name] for name in _LOADING if name in os.environ}
        try:
            os.set_inheritable(asked, True)
            os.set_inheritable(told, True)
            self._pid = os.posix_spawn(words[0], words, kept, file_actions=files, setsigmask=signal.valid_signals())
        except OSError:
            self._pid = 0
        finally:
            os.close(asked)
            os.close(told)

    def sent_to_group(self, number: int, sender: int) -> bool:
        """Whether this signal was sent to the group by this process (0: the kernel) since it was last asked about."""
        found = self._not_taken | self._pending()
        # An answer tells of all signals. Of the others those are still to come that are pending for us as well.
        to_come = signal.sigpending()
        self._not_taken = {entry for entry in found if entry[0] in to_come and entry != (number, sender)}
        return (number, sender) in found

    def settle(self, number: int, sender: int, by_terminal: bool) -> bool:
        """Find out whether a signal that we took reached the group, or is about to reach it.

        ``timeout`` signals its child and at once the whole group. So while the sender goes on running, the second
        signal is waited for; a sender that sleeps, or has ended, will send no more.

        Parameters
        ----------
        number, sender : int
            Signal, and process id of its sender as we see it; 0 for the kernel and for senders outside our namespace.
        by_terminal : bool
            The kernel itself sent it; what is believed where there is no second process to ask.

        Returns
        -------
        bool
            The job has it already, as far as it is in our group.
        """
        begin_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - begin_s
            # Looked at before the question: what the sender did until then is seen by the answer.
            over = sender == 0 or waited_s > _LONGEST_WAIT_S
            over = over or (waited_s > _SHORTEST_WAIT_S and not _is_running(sender))
            if self.sent_to_group(number, sender):
                return True
            if not self._pid:  # it could not be started, or was killed
                return by_terminal
            if over:
                return False
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the second process."""
        if self._pid:
            with contextlib.suppress(ChildProcessError):  # it has ended and its number may be another's by now
                if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
        for descriptor in (self._questions, self._answers):
            if descriptor >= 0:
                os.close(descriptor)
        self._pid, self._questions, self._answers = 0, -1, -1

    def _pending(self) -> set[tuple[int, int]]:
        if not self._pid:
            return set()
        # Takes the kernel's list of processes for writing, so that whoever signals the group now has ended; no change.
        with contextlib.suppress(OSError):
            os.setpgid(0, os.getpgrp())
        found: set[tuple[int, int]] = set()
        try:
            os.write(self._questions, b"?")
            while True:
                entry = os.read(self._answers, _ENTRY.size)
                if len(entry) < _ENTRY.size:
                    raise BrokenPipeError
                number, sender = _ENTRY.unpack(entry)
                if number == 0:
                    return found
                found.add((number, sender))
        except OSError:  # it was killed: go on as without it
            self.close()
            return found


def _is_running(pid: int) -> bool:
    """Whether any thread of a process is running or ready to run."""
    for state in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            if state.read_text(errors="replace").rpartition(")")[2].split()[0] == "R":
                return True
        except (OSError, IndexError):
            continue
    return False


def _stand(questions: int, answers: int) -> None:
    """Answer each question with the signals that came since the one before, until nobody can ask."""
    # Those that say something about ourselves, and none that this process could bring on itself.
    watched = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    while os.read(questions, 1):
        while (info := signal.sigtimedwait(watched, 0)) is not None:
            os.write(answers, _ENTRY.pack(info.si_signo, info.si_pid))
        os.write(answers, _ENTRY.pack(0, 0))


if __name__ == "__main__":
    _stand(int(sys.argv[1]), int(sys.argv[2]))
