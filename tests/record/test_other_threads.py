"""The end of a command is seen by a process that has other threads, as numpy and pyarrow start them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from forked_commands import environment

#: The command ends while the launcher does not wait: the other thread takes the signal of its end, and it is gone.
LAUNCHER = """
import sys, threading, time
from stashtrace.record import run
reap = run._Watch._reap
def slow(watch):
    reap(watch)
    time.sleep(0.3)
run._Watch._reap = slow
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(run.run_command(["sh", "-c", "sleep 0.1; exit 3"], out=sys.argv[1]).exit_code)
"""


def test_a_command_that_ends_while_nobody_waits(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path / "run")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
