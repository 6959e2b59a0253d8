"""Find out whether a signal that reached us was sent to our process group, and so reached the job too.

The job runs in our group. A signal to the group (from a terminal, ``kill -- -GROUP``, ``timeout``) reaches the job, a
signal to us alone does not, and the kernel does not say which it was. So we put a second process, the witness, into
the group, with every signal blocked: what is pending there was sent to the group. This does not depend on timing: the
kernel signals a group while it holds its list of processes, and :meth:`GroupWitness.sent_to_group` waits for that list.

This file is also the program of the witness, so it imports the standard library alone.
"""

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
#: Where a Python that is not installed for the whole system finds its library.
_LOADING = ("LD_LIBRARY_PATH",)
_SHORTEST_WAIT_S, _LONGEST_WAIT_S, _POLL_S = 0.02, 1.0, 0.002


class GroupWitness:
    """Starts the witness. Without one, every signal counts as sent to us alone, except those of a terminal.

    Block the signals in question before you make it, and start the job afterwards.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._questions = self._answers = -1
        self._not_taken: set[tuple[int, int]] = set()
        if not sys.executable:
            return
        asked, self._questions = os.pipe()
        self._answers, known = os.pipe()
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ]
        words = [sys.executable, "-I", "-S", __file__, str(asked), str(known)]
        # The rest of the environment is left out, so that the witness is not traced if we are.
        kept = {name: os.environ[name] for name in _LOADING if name in os.environ}
        try:
            os.set_inheritable(asked, True)
            os.set_inheritable(known, True)
            self._pid = os.posix_spawn(words[0], words, kept, file_actions=files, setsigmask=signal.valid_signals())
        except OSError:
            self._pid = 0
        finally:
            os.close(asked)
            os.close(known)

    def sent_to_group(self, number: int, sender: int) -> bool:
        """Return True if ``sender`` (0: the kernel) has sent this signal to the group since the last question."""
        sent = self._not_taken | self._pending()
        # An answer names all signals. We have yet to take those of the others that are pending for us too.
        pending = signal.sigpending()
        self._not_taken = {entry for entry in sent if entry[0] in pending and entry != (number, sender)}
        return (number, sender) in sent

    def settle(self, number: int, sender: int, by_terminal: bool) -> bool:
        """Find out whether a signal that we took has reached the group, or is about to.

        ``timeout`` signals its child and then the whole group. So we wait for the second signal while the sender runs;
        one that sleeps or has ended sends no more. ``number``, ``sender``: signal, and process id of its sender; 0 for
        the kernel and for senders outside our pid namespace. ``by_terminal``: whether the kernel itself sent it;
        decides where there is no witness. Returns True if the job has got it, as far as it is in our group.
        """
        begin_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - begin_s
            # Looked at before the question, so that the answer includes all that the sender has done until now.
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
        """End the witness."""
        if self._pid:
            with contextlib.suppress(ChildProcessError):  # it has ended, and its number may be another's by now
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
        # Changes nothing, but takes the kernel's list of processes for writing: who signals the group now is done then.
        with contextlib.suppress(OSError):
            os.setpgid(0, os.getpgrp())
        sent: set[tuple[int, int]] = set()
        try:
            os.write(self._questions, b"?")
            while True:
                entry = os.read(self._answers, _ENTRY.size)
                if len(entry) < _ENTRY.size:
                    raise BrokenPipeError
                number, sender = _ENTRY.unpack(entry)
                if number == 0:
                    return sent
                sent.add((number, sender))
        except OSError:  # the witness was killed: go on without one
            self.close()
            return sent


def _is_running(pid: int) -> bool:
    """Return True if a thread of a process runs, or is ready to."""
    for state in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            if state.read_text(errors="replace").rpartition(")")[2].split()[0] == "R":
                return True
        except (OSError, IndexError):
            continue
    return False


def _answer(questions: int, answers: int) -> None:
    """Answer each question with the signals that came since the last one, until the pipe is closed."""
    # Without those that cannot be blocked, and SIGCHLD, which is never passed on.
    watched = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    while os.read(questions, 1):
        while (info := signal.sigtimedwait(watched, 0)) is not None:
            os.write(answers, _ENTRY.pack(info.si_signo, info.si_pid))
        os.write(answers, _ENTRY.pack(0, 0))


if __name__ == "__main__":
    _answer(int(sys.argv[1]), int(sys.argv[2]))
