"""``stashtrace scrub RUN -o NEW``: take the secrets out of a run, so that it can be given to somebody else."""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stashtrace.cli.parsing import Parser, add_flag, existing_run
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import FormatError, MissingDataError, OutputError, StashtraceError, UsageError
from stashtrace.files.run_facts import host_file, json_object, valid_facts
from stashtrace.files.whole_files import folder_next_to, give_mode, read_text, read_whole, whole_file, written_to
from stashtrace.format.compact import compact_file, write_packed
from stashtrace.format.liveness import LiveRings
from stashtrace.format.scrub_file import ScrubbedFile, survey_file
from stashtrace.format.stash_file import StashFile
from stashtrace.loading.temporary_archives import kind_of
from stashtrace.record.directory import RUN_FILE, SUMMARY_FILE, TIMELINE_FILE, file_rights
from stashtrace.record.launchers import own_place
from stashtrace.scrubbing.pseudonyms import Scrubber, Survey
from stashtrace.store import scrub_store as stores
from stashtrace.store.layout import STORE_FILE, is_store, read_facts

_NAMED = 5


def parser() -> Parser:
    """Return the parser of ``stashtrace scrub``."""
    parser = Parser(
        "scrub",
        "Take secrets out of a run: values of secret arguments, variables that\n"
        "stashtrace does not store, users and queries of URLs, by the rules of\n"
        "docs/concepts/what-is-stored.md.\n"
        "With --paths and --hosts names become pseudonyms, each the same one\n"
        "everywhere. Summary and timeline are written again; every analysis gives the\n"
        "same numbers.",
        "example: stashtrace scrub ./stash-0412-093000 -o ./to-share --all",
    )
    parser.add_argument("path", metavar="RUN", help="run directory, .stash file, or store of Parquet files")
    parser.add_out("NEW", "where to write the scrubbed run; RUN stays as it is")
    add_flag(parser, "--in-place", "replace the files of RUN; what is taken out cannot be restored")
    add_flag(parser, "--paths", "pseudonyms for files and folders; suffixes stay")
    add_flag(parser, "--hosts", "pseudonyms for hosts and their addresses")
    add_flag(parser, "--all", "--paths and --hosts")
    return parser


def main(argv: Sequence[str]) -> int:
    """Scrub the run, and say on stderr what was written and what was left."""
    arguments = parser().read(argv)
    end_on_terminate()
    if (arguments.out is None) != arguments.in_place:
        raise UsageError(
            "give either -o NEW or --in-place",
            hint=f"`stashtrace scrub {arguments.path} -o NEW` leaves {arguments.path} as it is",
        )
    source = existing_run(arguments.path)
    if arguments.in_place and kind_of(Path(arguments.path)) is not None:
        raise UsageError(
            f"{arguments.path} is an archive, which is not written to",
            hint=f"`stashtrace scrub {arguments.path} -o NEW` makes a run directory",
        )

    screen = Screen()
    paths, hosts = arguments.paths or arguments.all, arguments.hosts or arguments.all
    with screen.progress("scrubbing") as bar:
        if arguments.in_place:
            report = scrub_in_place(source, paths=paths, hosts=hosts, progress=bar.step)
        else:
            report = scrub_to(source, Path(arguments.out), paths=paths, hosts=hosts, progress=bar.step)
    screen.say(f"wrote {report.written} files to {arguments.out or source}")
    if report.left:
        listed = ", ".join(report.left[:_NAMED]) + (
            f" and {len(report.left) - _NAMED} more" if report.left[_NAMED:] else ""
        )
        fate = "were left as they are" if arguments.in_place else "were not copied"
        screen.say(f"files that are not part of the run {fate}: {listed}")
    for problem in report.problems[:_NAMED]:
        screen.say(f"warning: {problem}")
    if report.problems and arguments.in_place:
        raise FormatError(
            f"{len(report.problems)} files of {source} could not be scrubbed",
            hint="read these files before you share the run",
        )
    return 0


# A new directory is written under another name and renamed when it is complete. In place each file is replaced
# atomically; the key of the pseudonyms and the names to replace are kept in a file of the directory until all files are
# done, so that a second call goes on where the first was interrupted.

#: Holds the key and the names to replace while a run is scrubbed in place.
STATE_FILE = "scrub.unfinished"
_CALIBRATION = "calibration.toml"
_VIEWS = (SUMMARY_FILE, TIMELINE_FILE)
_IN_WORK = ".scrubbed"

#: Called with (share done, what is being done).
Progress = Callable[[float, str], None]


@dataclass(slots=True)
class Report:
    """What was done with the files."""

    #: Files written.
    written: int = 0
    #: Names of files that are not part of a run: not copied, or left as they were.
    left: list[str] = field(default_factory=list)
    #: Sentences about files that could not be scrubbed or written again.
    problems: list[str] = field(default_factory=list)


def scrub_to(source: Path, target: Path, *, paths: bool, hosts: bool, progress: Progress) -> Report:
    """Write a run, a ``.stash`` file or a store to ``target``, without its secrets.

    Raises OutputError if there is something at ``target`` already, or nothing can be written there. Raises
    MissingDataError, FormatError if there is no run, or it is still being recorded.
    """
    hint = "choose another name with -o"
    if target.exists() and not (source.is_dir() and target.is_dir() and not any(target.iterdir())):
        raise OutputError(f"cannot write {target}: it exists already", hint=hint)
    if not target.absolute().parent.is_dir():
        raise OutputError(f"cannot write {target}: no such folder", hint=hint)
    with file_rights(share=False), written_to(target, hint), folder_next_to(target) as half:
        work = _Work(source, half, secrets.token_bytes(32), Survey(), paths, hosts, progress)
        work.run(shown=shlex.quote(target.name))
        made = half if source.is_dir() else next(half.iterdir())
        os.replace(made, target)
    return work.report


def scrub_in_place(source: Path, *, paths: bool, hosts: bool, progress: Progress) -> Report:
    """Replace each file of a run by one without secrets; errors as for :func:`scrub_to`."""
    directory = source if source.is_dir() else source.parent
    state = directory / STATE_FILE
    _refuse_recording(source)
    key, survey, paths, hosts = _state(state, paths, hosts)
    with file_rights(share=False), written_to(source, "make room, then scrub again: it goes on where it was"):
        work = _Work(source, None, key, survey, paths, hosts, progress)
        _replace(
            state,
            json.dumps(
                {
                    "key": key.hex(),
                    "hosts": sorted(survey.hosts),
                    "secrets": sorted(survey.secrets),
                    "folders": sorted(survey.folders),
                    "paths": paths,
                    "for_hosts": hosts,
                }
            ).encode(),
        )
        work.run(shown=shlex.quote(source.name))
    state.unlink()
    return work.report


def _state(state: Path, paths: bool, hosts: bool) -> tuple[bytes, Survey, bool, bool]:
    """Return key, survey and options: new ones, or those of a call that was interrupted."""
    survey = Survey()
    if not state.exists():
        return secrets.token_bytes(32), survey, paths, hosts
    try:
        kept = json_object(read_whole(state))
        survey.hosts |= set(kept["hosts"])
        survey.secrets |= set(kept["secrets"])
        survey.folders |= set(kept["folders"])
        return bytes.fromhex(kept["key"]), survey, paths or kept["paths"], hosts or kept["for_hosts"]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{state} is damaged", hint="remove it, and scrub again") from error


class _Work:
    """Scrubs the files of one run into ``target``, or in place if that is None."""

    def __init__(
        self,
        source: Path,
        target: Path | None,
        key: bytes,
        survey: Survey,
        paths: bool,
        hosts: bool,
        progress: Progress,
    ) -> None:
        self.report = Report()
        self._source, self._target, self._progress = source, target, progress
        self._store = source.is_dir() and is_store(source)
        if not self._store:
            _refuse_recording(source)
        self._directory = source if source.is_dir() else source.parent
        progress(0.0, "looking")
        if self._store:
            stores.survey_store(source, survey)
        else:
            self._survey(survey)
        self._scrubber = Scrubber(survey, key, paths=paths, hosts=hosts)

    def run(self, shown: str) -> None:
        """Write all files; ``shown`` is the name of the run in its summary."""
        if self._store:
            self._scrub_store()
            return
        stashes = _stashes(self._source)
        for done, path in enumerate(stashes):
            self._progress(0.3 + 0.5 * done / len(stashes), "scrubbing")
            self._scrub_process(path)
        if self._source.is_dir():
            for path in _facts_files(self._source):
                self._scrub_facts(path)
            self._scrub_calibration()
            self._progress(0.8, "summary and timeline")
            self._make_views(shown)
            known = {RUN_FILE, _CALIBRATION, STATE_FILE, *_VIEWS, *(p.name for p in _facts_files(self._source))}
            for path in sorted(self._source.iterdir()):
                if path.name not in known and path.suffix not in (".stash", ".ring"):
                    self.report.left.append(path.name)
            self.report.left += [
                p.name for p in sorted(self._source.glob("*.ring")) if not p.with_suffix(".stash").exists()
            ]

    def _survey(self, survey: Survey) -> None:
        stashes, readable = _stashes(self._source), []
        for path in stashes:
            try:
                readable.append(StashFile(str(path)))
            except FormatError as error:
                self.report.problems.append(f"{error}; it was left out" if self._target else f"{error}; it stays")
        if not readable:
            raise self._nothing()
        live = LiveRings.now()
        if going := [process.name for process in readable if live.holds(process)]:
            raise _still_recording(self._source, f"{len(going)} of {len(readable)} processes")
        if self._source.is_dir():
            for path in _facts_files(self._source):
                survey.add_facts(_facts_of(path))
        for done, process in enumerate(readable):
            survey_file(process, survey)
            self._progress(0.3 * done / len(readable), "looking")

    def _nothing(self) -> StashtraceError:
        if self.report.problems:
            return FormatError(f"{self._source} holds no readable trace: {self.report.problems[0]}")
        return MissingDataError(
            f"{self._source} holds no run of stashtrace",
            hint="give a run directory, a .stash file, or a store of Parquet",
        )

    def _scrub_process(self, path: Path) -> None:
        try:
            process = ScrubbedFile(str(path), self._scrubber)
        except FormatError:
            return  # the survey has reported it
        name = self._scrubber.stem(path.stem) + ".stash"
        if self._target is not None:
            write_packed(process, str(self._target / name))
        else:
            ring = Path(process.ring_path)
            compact_file(process, again=True)
            ring.unlink(missing_ok=True)  # also one that was left next to a merged file
            os.replace(path, path.with_name(name))
        self.report.written += 1

    def _scrub_facts(self, path: Path) -> None:
        facts = _facts_of(path)
        before = facts.pop("scrubbed", [])
        done = [str(n) for n in before] if isinstance(before, list) else []
        scrubber = self._scrubber.after(done)
        new = scrubber.facts(facts) | {"scrubbed": list(dict.fromkeys([*done, *scrubber.done]))}
        name = path.name
        if path.name != RUN_FILE:
            kind, _, stem = path.name.removesuffix(".json").partition(".")
            name = f"{kind}.{self._scrubber.stem(stem)}.json"
        self._put(path, name, (json.dumps(new, indent=1) + "\n").encode())

    def _scrub_calibration(self) -> None:
        path = self._directory / _CALIBRATION
        if path.exists():
            text = read_text(path, errors="replace")
            lines = [self._scrubber.text(line) for line in text.split("\n")]
            self._put(path, path.name, "\n".join(lines).encode())

    def _put(self, path: Path, name: str, content: bytes) -> None:
        """Write ``content`` in place of ``path``, or under ``name`` into the new directory."""
        mode = 0o600 if self._target is not None else path.stat().st_mode & 0o777
        _replace((self._target or path.parent) / path.name, content, mode)
        os.replace((self._target or path.parent) / path.name, (self._target or path.parent) / name)
        self.report.written += 1

    def _make_views(self, shown: str) -> None:
        """Write summary and timeline again from the scrubbed files, where the run has them."""
        wanted = [name for name in _VIEWS if (self._source / name).exists()]
        if not wanted:
            return
        from stashtrace.cli.find_runs import ignore_losses
        from stashtrace.cli.merging import write_summary
        from stashtrace.exporters.registry import export
        from stashtrace.loading.load import load_trace

        directory = self._target or self._source
        try:
            with ignore_losses():
                trace = load_trace(str(directory))
                for name in wanted:
                    if name == SUMMARY_FILE:
                        write_summary(trace, directory / name, f"./{shown}")
                    else:
                        export(trace, "perfetto", str(directory / name))
                    self.report.written += 1
        except StashtraceError as error:
            if self._target is None:
                for name in wanted:
                    (directory / name).unlink(missing_ok=True)
            self.report.problems.append(f"{' and '.join(wanted)} could not be written again and are left out: {error}")

    def _scrub_store(self) -> None:
        rows = dict(read_facts(self._source)["rows"])
        names = stores.tables_of(self._source)
        facts_count = 0
        for done, name in enumerate(names):
            self._progress(0.3 + 0.7 * done / len(names), "scrubbing")
            place = (self._target or self._source) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            half = place.with_name(place.name + _IN_WORK)
            half.unlink(missing_ok=True)
            count = stores.scrub_table(self._source / name, half, name.parts[0], self._scrubber)
            facts_count += count if name.parts[0] == "metadata" else 0  # it alone loses rows
            if self._target is None:
                give_mode(half, place.stat().st_mode & 0o777)
            os.replace(half, place)
            self.report.written += 1
        if "metadata" in rows:
            rows["metadata"] = facts_count
        file = self._source / STORE_FILE
        self._put(file, file.name, stores.scrubbed_facts(self._source, self._scrubber, rows).encode())
        self.report.left += [
            str(path.relative_to(self._source)) for path in stores.others_of(self._source) if path.name != STATE_FILE
        ]


def _stashes(source: Path) -> list[Path]:
    return sorted(source.glob("*.stash")) if source.is_dir() else [source]


def _facts_files(directory: Path) -> Iterator[Path]:
    yield from [directory / RUN_FILE] if (directory / RUN_FILE).exists() else []
    yield from sorted([*directory.glob("launch.*.json"), *directory.glob(host_file("*"))])


def _facts_of(path: Path) -> dict[str, Any]:
    try:
        return valid_facts(json_object(read_whole(path)))
    except (OSError, ValueError):
        return {}


def _refuse_recording(source: Path) -> None:
    """Raise FormatError if a launcher on this host still runs the job."""
    if not source.is_dir() or is_store(source):
        return
    for path in _facts_files(source):
        facts = _facts_of(path)
        launcher = facts.get("launcher_pid")
        here = facts.get("place", "") == own_place()
        runs = isinstance(launcher, int) and os.path.exists(f"/proc/{launcher}")
        if "end_realtime_ns" not in facts and here and runs:
            raise _still_recording(source, f"`stashtrace run` (process {launcher})")


def _still_recording(source: Path, who: str) -> FormatError:
    return FormatError(f"{source} is still being recorded by {who}", hint="scrub it when the job has ended")


def _replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    with whole_file(path, own_mode=True) as half:
        with half.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        give_mode(half, mode)
