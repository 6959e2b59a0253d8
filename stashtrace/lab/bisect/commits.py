"""What bisection needs of git: the commits, two separate working trees, and `git bisect` in one of them.

The user's working tree, index and bisection stay as they are: references of a bisection belong to the
working tree that it runs in.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stashtrace.analysis.compare.steps_of_run import StepsOfRun
from stashtrace.errors import CaptureError, UsageError
from stashtrace.files.whole_files import new_log
from stashtrace.lab.alternating import Job, record_job, require_success
from stashtrace.lab.processes import signals_handled
from stashtrace.text.prose import count_noun

#: Names of the two working trees in their folder.
GOOD, TESTED = "good", "tested"
_FIRST_BAD = re.compile(r"^([0-9a-f]{40,64}) is the first bad commit$", re.MULTILINE)
#: Of `git bisect skip`: only commits that were skipped are left.
_ONLY_SKIPPED = 2
_ID_LENGTH = 10


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the repository."""

    #: Whole hash.
    sha: str
    #: First line of its message.
    subject: str

    @property
    def short(self) -> str:
        """Beginning of the hash."""
        return self.sha[:_ID_LENGTH]


@dataclass(frozen=True, slots=True)
class Next:
    """What `git bisect` wants next."""

    #: Commit to judge; None if there is none left.
    commit: Commit | None = None
    first_bad: Commit | None = None
    #: Commits of which one is the first bad one, where some could not be judged.
    left: tuple[Commit, ...] = ()


class Repository:
    """The repository of a folder.

    ``folder``: anywhere in its working tree. Raises UsageError if it is in none. Raises CaptureError without git.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("git") is None:
            raise CaptureError("git is not installed", hint="`stashtrace check` compares two commands without it")
        found = _git(folder, "rev-parse", "--show-toplevel")
        if found.returncode:
            raise UsageError(f"{folder} is not in a git repository", hint="change to the folder of the job's code")
        self.top = Path(found.stdout.strip())
        #: Of the user's folder below the top.
        self.inside = folder.resolve().relative_to(self.top.resolve())

    def commit(self, name: str, option: str) -> Commit:
        """Return the commit of a revision. Raises UsageError if there is none."""
        found = _git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if found.returncode:
            raise UsageError(f"{option} {name}: no such commit", hint="`git log --oneline` lists the commits")
        return self._described(found.stdout.strip())

    def require_clean(self) -> None:
        """Raise UsageError if files that git tracks have changes that no commit holds."""
        changed = [line[3:] for line in self._lines("status", "--porcelain", "--untracked-files=no")]
        if changed:
            raise UsageError(
                f"{count_noun(len(changed), 'file')} changed since the last commit: {changed[0]}"
                f"{', ...' if len(changed) > 1 else ''}",
                hint="commit or stash that, or judge the commits without it: --ignore-changes",
            )

    def require_range(self, good: Commit, bad: Commit) -> int:
        """Return how many commits lie after ``good`` up to ``bad``; raise UsageError if ``bad`` does not follow."""
        if good == bad:
            raise UsageError(f"--good and --bad are one commit: {good.short}", hint="--good has to be an earlier one")
        if _git(self.top, "merge-base", "--is-ancestor", good.sha, bad.sha).returncode:
            raise UsageError(
                f"{bad.short} of --bad does not follow {good.short} of --good",
                hint=f"a commit that both have: `git merge-base {good.short} {bad.short}`",
            )
        return int(self._lines("rev-list", "--count", f"{good.sha}..{bad.sha}")[0])

    def require_files_of_commits(self, command: Sequence[str]) -> None:
        """Raise UsageError if a word of the command names a file of the user's working tree by its absolute path."""
        for word in command:
            if not word.startswith("/") or not Path(word).is_file():
                continue
            if not _git(self.top, "ls-files", "--error-unmatch", "--", os.path.realpath(word)).returncode:
                raise UsageError(
                    f"{word} is the same file for every commit",
                    hint=f"name it from this folder: {os.path.relpath(word)}",
                )

    @contextmanager
    def worktrees(self, folder: Path, good: Commit, bad: Commit) -> Iterator[tuple[Path, Path]]:
        """Check out both commits into ``good`` and ``tested`` below a new folder; remove them at the end.

        Raises CaptureError if git cannot.
        """
        places = folder / GOOD, folder / TESTED
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise CaptureError(
                f"cannot make {folder}: {error.strerror}", hint="choose another directory with -o"
            ) from error
        try:
            for place, commit in zip(places, (good, bad), strict=True):
                self._do("worktree", "add", "--quiet", "--detach", str(place.absolute()), commit.sha)
            yield places
        finally:
            # No Ctrl-C and no SIGTERM may interrupt the removal.
            with signals_handled((signal.SIGINT, signal.SIGTERM), signal.SIG_IGN):
                for place in places:
                    if place.is_dir():
                        _git(place, "bisect", "reset", own_session=True)
                    _git(self.top, "worktree", "remove", "--force", str(place.absolute()), own_session=True)
                shutil.rmtree(folder, ignore_errors=True)
                _git(self.top, "worktree", "prune", own_session=True)

    def begin(self, tested: Path, good: Commit, bad: Commit) -> Next:
        """Begin `git bisect` in a working tree."""
        return self._next(tested, "start", bad.sha, good.sha)

    def judge(self, tested: Path, verdict: str) -> Next:
        """Report to `git bisect` that the commit it checked out is ``good``, ``bad``, or to ``skip``."""
        return self._next(tested, verdict)

    def _next(self, tested: Path, *words: str) -> Next:
        # What a build or a run changed in tracked files would be in the way of the next commit.
        _git(tested, "reset", "--hard", "--quiet")
        found = _git(tested, "bisect", *words)
        first_bad = _FIRST_BAD.search(found.stdout)
        if first_bad:
            return Next(first_bad=self._described(first_bad[1]))
        if found.returncode == _ONLY_SKIPPED:
            left = re.findall(r"^[0-9a-f]{40,64}$", found.stdout, re.MULTILINE)
            return Next(left=tuple(map(self._described, left)))
        if found.returncode:
            raise CaptureError(f"`git bisect {words[0]}` failed: {_last_line(found)}")
        return Next(self._described(_git(tested, "rev-parse", "HEAD").stdout.strip()))

    def _described(self, sha: str) -> Commit:
        return Commit(sha, "".join(self._lines("log", "-1", "--format=%s", sha)[:1]))

    def _lines(self, *words: str) -> list[str]:
        return self._do(*words).splitlines()

    def _do(self, *words: str) -> str:
        done = _git(self.top, *words)
        if done.returncode:
            raise CaptureError(f"`git {words[0]}` failed: {_last_line(done)}")
        return done.stdout


def _git(folder: Path, *words: str, own_session: bool = False) -> subprocess.CompletedProcess[str]:
    """Run git in a folder; ``own_session``: where Ctrl-C does not reach it."""
    # A hook of git that calls us names its own repository by variables.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", "-C", str(folder), *words],
        env={**inherited, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=own_session,
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


# Building and running the commits that are checked out.

#: Files of bytecode are known as stale by seconds and sizes of their sources: two commits may have the same.
_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1"}


class CommitRunner:
    """Makes the runs of commits.

    ``build``: command of a shell that prepares a commit, or empty. ``inside``: folder below the top of a working tree
    in which both run. ``links``: paths of the user's folder that git does not track, linked into the working trees.
    ``steps_of``: loads a run. ``on_run``: called before each run with its number and its directory.
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
        require_success("--build", done.returncode, log)
