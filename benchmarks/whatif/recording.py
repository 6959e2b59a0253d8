"""Record the jobs, one after the other and all of them again, and keep the recordings."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from whatif.job import PIECE_BYTES, places
from whatif.network import delayed_hosts, shaped_hosts
from whatif.pairs import Setup

ROOT = Path(__file__).resolve().parents[2]
_LAUNCHER = ROOT / "tests" / "ground_truth" / "launch_ranks.py"
_EXAMPLE = ROOT / "examples" / "train_ddp.py"
_JOB = Path(__file__).with_name("job.py")
_MIB = 1 << 20
_FILE_MIB = 1024
_EXAMPLE_ARGUMENTS = "--images 400 --image-size 96 --log-every 1000 --steps 50"
#: No job is as long on a machine that does anything else at all.
_PATIENCE_S = 120
#: Another process may take the port that a job was given.
_TRIES = 2


def recording(name: str, setup: Setup, runs: Path, repetition: int) -> Path:
    """Folder of a recording of a job, which is made if it is not there.

    Raises
    ------
    RuntimeError
        If the job fails.
    """
    folder = runs / f"{name}-{repetition}"
    wanted = json.dumps(dataclasses.asdict(setup))
    reported = folder / "setup.json"
    if reported.exists() and reported.read_text(encoding="utf-8") == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if setup.config is not None and setup.config.reads:
        _chill(runs / "ballast", setup.config.reads, setup.cold_ratio)
    for _ in range(_TRIES):
        done = _run(setup, folder, runs)
        if not done.returncode:
            reported.write_text(wanted, encoding="utf-8")
            return folder
        shutil.rmtree(folder / "run", ignore_errors=True)
    raise RuntimeError(f"{name}: exit code {done.returncode}\n{done.stderr[-3000:]}")


def _run(setup: Setup, folder: Path, runs: Path) -> subprocess.CompletedProcess[str]:
    with _hosts(setup) as options:
        command = [sys.executable, "-m", "stashtrace", "run", "--no-merge", "--out", str(folder / "run"), "--"]
        command += [sys.executable, str(_LAUNCHER), "--ranks", str(setup.ranks), *options, "--", sys.executable]
        environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
        return subprocess.run(
            [*command, *_job(setup, runs)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )


def prepare(runs: Path) -> None:
    """Write the file and the images that jobs read."""
    runs.mkdir(parents=True, exist_ok=True)
    ballast = runs / "ballast"
    if not ballast.exists():
        with ballast.open("wb") as file:
            for _ in range(_FILE_MIB):
                file.write(os.urandom(_MIB))
            os.fsync(file.fileno())
    command = [sys.executable, str(_EXAMPLE), "--data", str(runs / "images"), *_EXAMPLE_ARGUMENTS.split()]
    subprocess.run([*command, "--generate-only"], check=True, timeout=_PATIENCE_S, capture_output=True)


def _chill(path: Path, reads: int, cold_ratio: float) -> None:
    """Have so much of what each batch reads in storage alone, and the rest in memory."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    for number, begin in enumerate(places(str(path))):
        if number % reads >= cold_ratio * reads:
            os.pread(descriptor, PIECE_BYTES, begin)
    os.close(descriptor)


def _job(setup: Setup, runs: Path) -> list[str]:
    if setup.config is None:
        words = f"{_EXAMPLE_ARGUMENTS} {setup.arguments}".split()
        return [str(_EXAMPLE), "--data", str(runs / "images"), *words]
    config = dataclasses.replace(setup.config, file=str(runs / "ballast"))
    return [str(_JOB), json.dumps(dataclasses.asdict(config))]


@contextlib.contextmanager
def _hosts(setup: Setup) -> Iterator[list[str]]:
    if setup.delay_ms:
        with delayed_hosts(setup.delay_ms) as hosts:
            yield hosts.launch_options
    elif setup.megabits:
        with shaped_hosts(setup.ranks, setup.megabits) as hosts:
            yield hosts.launch_options
    else:
        yield []
