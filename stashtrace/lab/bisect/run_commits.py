"""Build and run the commits that are checked out in the working trees of a bisection."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from stashtrace.analysis.compare.steps_of_run import StepsOfRun
from stashtrace.errors import CaptureError
from stashtrace.lab.bisect.commits import Commit
from stashtrace.lab.characterize.run_on_hosts import last_words
from stashtrace.lab.rerun import Job, record_job
from stashtrace.whole_files import new_log

#: Files of bytecode are told from their sources by seconds and sizes: two commits may have the same.
_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1"}


class CommitRunner:
    """Makes the runs of commits.

    ``command``: of the job. ``build``: command of a shell that prepares a commit, or empty. ``inside``: folder below
    the top of a working tree in which both run. ``links``: paths of the user's folder that git does not track, linked
    into the working trees. ``options``: of ``stashtrace run``. ``out``: folder for the runs. ``steps_of``: loads a run.
    ``on_run``: called before each run with its number and its directory.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        build: str,
        inside: Path,
        links: Sequence[Path],
        options: Sequence[str],
        out: Path,
        steps_of: Callable[[Path], StepsOfRun],
        on_run: Callable[[int, Path], None] = lambda number, path: None,
    ) -> None:
        self._command, self._build, self._inside, self._links = tuple(command), build, inside, links
        self._options, self._out, self._steps_of, self._on_run = tuple(options), out, steps_of, on_run
        self._prepared: dict[Path, str] = {}
        self._counts: dict[str, int] = {}

    def record(self, commit: Commit, tree: Path) -> StepsOfRun:
        """Make one run of a commit that is checked out in a working tree.

        Raises CaptureError if it does not build or run. Raises MissingDataError if its run has no steps.
        """
        number = self._counts[commit.short] = self._counts.get(commit.short, -1) + 1
        directory = (self._out / f"{commit.short}-{number}").absolute()
        folder = tree / self._inside
        if not folder.is_dir():
            raise CaptureError(f"it has no folder {self._inside}", hint="start in a folder that all commits have")
        if self._prepared.get(tree) != commit.sha:
            self._prepare(commit, folder)
            self._prepared[tree] = commit.sha
        self._on_run(sum(self._counts.values()) + len(self._counts), directory)
        job = Job(commit.short, self._command, folder, self._options, _ENVIRONMENT)
        return self._steps_of(record_job(job, directory))

    def _prepare(self, commit: Commit, folder: Path) -> None:
        for path in self._links:
            place = folder / path
            if not os.path.lexists(place):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(path.absolute())
        if not self._build:
            return
        log = self._out / f"{commit.short}-build.log"
        log.unlink(missing_ok=True)
        with new_log(log) as output:
            done = subprocess.run(
                self._build, shell=True, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        if done.returncode:
            raise CaptureError(
                f"--build ended with exit code {done.returncode}: {last_words(log) or 'it printed nothing'}",
                hint=f"its output is in {log}",
            )
