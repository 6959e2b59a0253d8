"""Runs `python -m stashtrace` as forks of one process that has imported what commands import.

Half a second of each short command is imports, and the tests run a thousand commands. A fork has separate streams, exit
code, environment and current folder, and runs `__main__.py` to its end, as a process that is started does. What Python
and libraries read when they start it has from the first process: with other such variables a command is started.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stashtrace.errors import FAULTS_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
#: First on the path of jobs that compile nothing.
EAGER_JOBS = ROOT / "tests/support/eager_jobs"
#: Beginnings of the variables that are read once in a process.
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "GLIBC_", "MALLOC_", "OPENBLAS_", "OMP_", "MPL", "ARROW_")
#: What commands import late, where it is installed.
_PACKAGES = (
    "argparse",
    "csv",
    "difflib",
    "numpy.random",
    "pyarrow.parquet",
    "pyarrow.compute",
    "sqlite3",
    "statistics",
)
#: Of ours, what is no part of a command: it runs in processes of jobs.
_IN_JOBS = ("stashtrace.probes", "stashtrace.__main__")
_MESSAGE_BYTES = 1 << 20


def environment(**extra: str) -> dict[str, str]:
    """The environment of the tests, without what a traced or coloured shell would add; jobs in it compile nothing."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("STASHTRACE_") and k != "LD_PRELOAD"}
    # A package that is not installed is found; one that is (the usual case) wins by being the same.
    path = ":".join([str(EAGER_JOBS), str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "LC_ALL": "C.UTF-8", FAULTS_VARIABLE: "raise", **extra}


def run_command(
    words: Sequence[str], cwd: Path | None, variables: Mapping[str, str], timeout_s: float, path: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m stashtrace`` with the words and these variables, and without input.

    ``path``: folders that stand first in PYTHONPATH, of packages that nothing has imported yet.
    """
    command = [sys.executable, "-m", "stashtrace", *words]
    reported = dict(variables)
    if path:
        reported["PYTHONPATH"] = os.pathsep.join(filter(None, [*path, variables.get("PYTHONPATH")]))
    server, started_with = _server()
    if _read_at_start(variables) != started_with:
        return subprocess.run(
            command,
            cwd=cwd,
            env=reported,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    request = {"words": words, "cwd": os.fspath(cwd or Path.cwd()), "variables": reported, "path": path}
    with contextlib.ExitStack() as ends:
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        for pipe in (out, err):
            ends.callback(os.close, pipe)
        socket.send_fds(server, [json.dumps(request).encode()], [out_end, err_end])
        os.close(out_end)
        os.close(err_end)
        pid = int(server.recv(_MESSAGE_BYTES))
        try:
            texts = _read_to_the_end((out, err), timeout_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and what it started has not
                os.kill(pid, signal.SIGKILL)
            raise
        finally:
            code = int(server.recv(_MESSAGE_BYTES))
    return subprocess.CompletedProcess(command, code, *texts)


def _read_to_the_end(pipes: Sequence[int], timeout_s: float) -> list[str]:
    """Return what comes through each pipe, with ends of lines as Python reads them."""
    deadline = time.monotonic() + timeout_s
    read: dict[int, bytearray] = {pipe: bytearray() for pipe in pipes}
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(deadline - time.monotonic())
            if not ready:
                raise subprocess.TimeoutExpired("python -m stashtrace", timeout_s)
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                read[key.fd] += part
                if not part:
                    selector.unregister(key.fd)
    return [content.decode().replace("\r\n", "\n").replace("\r", "\n") for content in read.values()]


def _read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_READ_AT_START)}


@functools.cache
def _server() -> tuple[socket.socket, dict[str, str]]:
    """Start the process that forks; return the connection to it, whose end ends it, and what it was started with."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    variables = environment()
    command = [sys.executable, __file__, str(theirs.fileno())]
    process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours, _read_at_start(variables)


def _import_all() -> None:
    files = sorted((ROOT / "stashtrace").rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if file.stem != "__init__"]
    for name in [*(name for name in names if not name.startswith(_IN_JOBS)), *_PACKAGES]:
        with contextlib.suppress(ImportError):  # a package that it needs is not installed
            importlib.import_module(name)


def _fork_for_each(client: socket.socket) -> dict[str, Any] | None:
    """Fork for each request: return the request in the forked process, None in the first one when there are no more."""
    while True:
        message, streams, _, _ = socket.recv_fds(client, _MESSAGE_BYTES, 2)
        if not message:
            return None
        pid = os.fork()
        if pid == 0:
            os.dup2(streams[0], 1)
            os.dup2(streams[1], 2)
            os.closerange(3, max(streams[1], client.fileno()) + 1)
            client.detach()
            request: dict[str, Any] = json.loads(message)
            return request
        for stream in streams:
            os.close(stream)
        client.send(str(pid).encode())
        client.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    gc.disable()  # all that is imported stays
    _import_all()
    gc.freeze()
    gc.enable()
    request = _fork_for_each(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        os.environ.clear()
        os.environ.update(request["variables"])
        os.chdir(request["cwd"])
        if not os.environ.get("PYTHONSAFEPATH"):
            sys.path.insert(0, os.getcwd())
        sys.path[1:1] = request["path"]
        sys.argv = ["-m", *request["words"]]
        try:
            runpy._run_module_as_main("stashtrace")  # what `python -m` calls
        except SystemExit as end:
            if not isinstance(end.code, int):
                raise
            # As Python ends, but for the release of all that was imported, which takes longer than most commands.
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)
