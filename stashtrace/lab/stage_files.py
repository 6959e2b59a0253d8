"""Copy files to a faster disk, and measure whether the job gains what the advice said.

    stage:       copy the files that `io_staging` chose into a folder of the tier, and list them
    check_gain:  run the job in pairs, with the files where they are and with the copies in their place, both cold

The job's script is not changed: the preloaded runtime leads its opens to the copies.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stashtrace.analysis.io.staging import staged_opens
from stashtrace.errors import CaptureError, FormatError, MissingDataError, StashtraceError, say_why
from stashtrace.files.whole_files import remove_left_in, try_folder, whole_file
from stashtrace.lab.characterize.run_figures import Figures, Stall, stalls, step_figures, step_time
from stashtrace.lab.characterize.run_on_hosts import HostTask, here, run_tasks
from stashtrace.lab.job_files import file_set, size_of
from stashtrace.lab.number_intervals import Estimate
from stashtrace.lab.page_cache import make_cold
from stashtrace.lab.processes import ProgressCallback, no_progress
from stashtrace.loading.load import load_trace
from stashtrace.record.directory import RUN_FILE, file_rights
from stashtrace.record.host import IN_MEMORY, file_system_of
from stashtrace.record.options import RecordOptions
from stashtrace.record.staged_files import Copy, read_staged_list, write_staged_list
from stashtrace.report.blocks import Block, Command, Facts, Listing
from stashtrace.text.prose import count_noun, list_some
from stashtrace.text.units import bytes_text, duration_text

LIST_NAME = "staged.list"
#: Configurations in the terms of ``lab.characterize.run_figures``: the gain is a difference, as a fetch stall is.
_PLAIN, _STAGED = 3, 4
_CHUNK_BYTES = 16 << 20
_LONGEST_RUN_S = 600.0


class _FileRefusedError(Exception):
    """A file cannot be copied, because of itself; the others can."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Files that lie on the tier."""

    #: By the name of the file.
    copies: dict[str, Copy]
    list_path: Path
    #: Files that were copied now; the others were there.
    copied_count: int
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def bytes(self) -> int:
        """Size of all copies."""
        return sum(copy.size_bytes for copy in self.copies.values())


@dataclass(frozen=True, slots=True)
class Gain:
    """Measured gain of staging."""

    #: Step time in ns.
    plain: Estimate | None = None
    staged: Estimate | None = None
    #: The difference; ``lost_ns`` is what a step gains.
    gain: Stall | None = None
    #: Of a failure, empty if it was measured.
    why: str = ""
    #: Opens that were served by a copy, of each run with the copies.
    opens: tuple[int, ...] = ()
    notes: tuple[str, ...] = field(default=())


def stage(
    paths: Sequence[str], tier: Path, *, room_bytes: int | None = None, on_progress: ProgressCallback = no_progress
) -> Staged:
    """Copy files into a folder, and write the list next to them; equal ones that are there are kept.

    A copy has another name until it is whole, so what an interruption leaves is never used. ``paths``: those that come
    first gain most. ``room_bytes``: what all copies together may take. Files may be larger than what the job read of
    them. Raises CaptureError if the folder cannot be written to or has no room, or no file can be copied; what was
    copied by this call is removed then.
    """
    sizes, left = _sizes(paths, room_bytes)
    if not sizes:
        raise _nothing_copied(left)
    if os.path.realpath(tier) in {os.path.realpath(folder) for folder in {os.path.dirname(path) for path in sizes}}:
        raise CaptureError(
            f"cannot stage into {tier}: the job reads files there, and may take copies for more of them",
            hint="choose another folder with --to",
        )
    made: list[Path] = []
    copies: dict[str, Copy] = {}
    try:
        tier.mkdir(parents=True, exist_ok=True)
        _, others = try_folder(tier)
        if others:
            raise CaptureError(
                f"cannot stage into {tier}: {others} may replace the copies that the job is to read",
                hint=f"let a folder of yours be made in it: `--to {tier / 'NAME'}`",
            )
        remove_left_in(tier)  # of a call that was killed
        _remove_others(sizes, tier)
        _look_for_room(sizes, tier)
        total, done = max(sum(sizes.values()), 1), 0
        for path, size in sizes.items():
            copy = tier / _name_of(path)
            if not _is_copied(path, copy):
                what = f"copying {len(made)} of {len(sizes)} files"
                try:
                    for copied in _copy(path, copy):
                        on_progress(min((done + copied) / total, 1.0), what)
                except _FileRefusedError as error:
                    left.append((path, str(error)))
                    continue
                made.append(copy)
            status = os.stat(copy)
            copies[path] = Copy(str(copy.absolute()), status.st_size, os.stat(path).st_mtime_ns)
            done += size
        if not copies:
            raise _nothing_copied(left)
        write_staged_list(tier / LIST_NAME, copies)
    except BaseException as error:
        for copy in made:
            with suppress(OSError):
                copy.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _refused(tier, error) from error
        raise
    return Staged(copies, tier / LIST_NAME, len(made), tuple(left))


def _sizes(paths: Sequence[str], room_bytes: int | None) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Find sizes of the files that can be copied; and the others, each with the reason."""
    sizes: dict[str, int] = {}
    left: list[tuple[str, str]] = []
    total = 0
    for path in paths:
        try:
            status = os.stat(path)
        except OSError as error:
            left.append((path, say_why(error)))
            continue
        if not stat.S_ISREG(status.st_mode):
            left.append((path, "not a regular file"))
        elif room_bytes is not None and total + status.st_size > room_bytes:
            left.append((path, f"{bytes_text(status.st_size)} in all do not fit into what is left of the room"))
        else:
            sizes[path] = status.st_size
            total += status.st_size
    return sizes, left


def _nothing_copied(left: Sequence[tuple[str, str]]) -> CaptureError:
    path, why = left[0]
    return CaptureError(
        f"none of the {count_noun(len(left), 'file')} can be copied: {path} ({why})",
        hint="record the job again on this machine, or give more room with --size",
    )


def held_bytes(tier: Path) -> int:
    """Bytes that the copies of an earlier call take in a folder; 0 if there are none."""
    try:
        copies = read_staged_list(tier / LIST_NAME)
    except FormatError:
        return 0
    return sum(size_of(copy.path) for copy in copies.values() if Path(copy.path).parent == tier.absolute())


def _remove_others(wanted: Mapping[str, int], tier: Path) -> None:
    """Remove what an earlier call copied here and the new list will not name."""
    with suppress(FormatError):
        for path, copy in read_staged_list(tier / LIST_NAME).items():
            if path not in wanted and copy.path == str(tier.absolute() / _name_of(path)):
                Path(copy.path).unlink(missing_ok=True)


def _look_for_room(sizes: Mapping[str, int], tier: Path) -> None:
    disk = os.statvfs(tier)
    block, free = max(disk.f_frsize, 1), disk.f_bavail * disk.f_frsize
    missing = (size for path, size in sizes.items() if not _is_copied(path, tier / _name_of(path)))
    needed = sum(-(-size // block) * block for size in missing)
    if needed > free:
        raise CaptureError(
            f"no room for {bytes_text(needed)} of copies in {tier}: {bytes_text(free)} are free",
            hint="choose less with --size, or another --to",
        )


def _refused(tier: Path, error: OSError) -> CaptureError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    hint = "choose less with --size, or another --to" if full else "choose another folder with --to"
    return CaptureError(f"cannot stage into {tier}: {say_why(error)} ({error.filename or tier})", hint=hint)


def _copy(path: str, copy: Path) -> Iterator[int]:
    """Copy a file, whole or not at all; yields the bytes that are copied so far.

    Raises _FileRefusedError if the file cannot be read, or was changed meanwhile. Raises OSError if the tier refuses.
    """
    try:
        source = open(path, "rb", buffering=0)  # noqa: SIM115 (its errors are not those of the target)
    except OSError as error:
        raise _FileRefusedError(say_why(error)) from error
    with source, whole_file(copy, own_mode=True, tidy=False) as half:
        before = os.fstat(source.fileno())
        done = 0
        with open(half, "wb", buffering=0) as target:
            while chunk := source.read(_CHUNK_BYTES):
                view = memoryview(chunk)
                while view:
                    view = view[target.write(view) or 0 :]
                done += len(chunk)
                yield done
        os.utime(half, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.chmod(half, before.st_mode & 0o777 | 0o200)
        after = os.stat(path)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns) or done != after.st_size:
            raise _FileRefusedError("was changed while it was copied")


def check_runs_folder(out: Path, repeats: int) -> None:
    """Check before anything is copied that the runs of a check have a place.

    Raises CaptureError if the folder cannot be made, or something in it has the name of a run and is none.
    """
    try:
        with file_rights(share=False):
            out.mkdir(parents=True, exist_ok=True)
        for path in (out / _run_name(kind, repeat) for repeat in range(repeats) for kind in (_PLAIN, _STAGED)):
            if path.exists() and not (path / RUN_FILE).exists() and (not path.is_dir() or any(path.iterdir())):
                raise CaptureError(f"{path} is in the way and no run of ours", hint="choose another folder with --out")
    except OSError as error:
        hint = "choose another folder with --out"
        raise CaptureError(f"cannot write runs to {out}: {say_why(error)}", hint=hint) from error


def _run_name(kind: int, repeat: int) -> str:
    return f"{'staged' if kind == _STAGED else 'plain'}-{repeat}"


def check_gain(
    command: Sequence[str],
    staged: Staged,
    out: Path,
    *,
    repeats: int,
    iterations: int,
    warmup: int,
    others: Sequence[str] = (),
    directory: str | None = None,
    on_progress: ProgressCallback = no_progress,
) -> Gain:
    """Run a job with and without the copies, alternately, each time with its files out of the page cache.

    ``repeats``, ``iterations``, ``warmup``: pairs; training steps of a run that count, and those before them.
    ``others``: files that the job reads and that were not staged: they are made cold as well.
    """
    files = file_set([*staged.copies, *others])
    # A tier in memory is always warm, and that is what it is for.
    in_memory = file_system_of(os.path.realpath(staged.list_path.parent)) in IN_MEMORY
    tier_files = file_set([] if in_memory else [copy.path for copy in staged.copies.values()])
    times: dict[int, list[float]] = {_PLAIN: [], _STAGED: []}
    notes: list[str] = []
    opens: list[int] = []
    for number in range(2 * repeats):
        repeat, second = divmod(number, 2)
        kind = _STAGED if (repeat + second) % 2 else _PLAIN
        what = f"pair {repeat + 1} of {repeats}, {'copies' if kind == _STAGED else 'files where they are'}"
        report = functools.partial(on_progress, number / (2 * repeats), what)
        report()
        for cooled in (files, tier_files):
            state = make_cold(cooled) if cooled.paths else None
            if state is not None and not state.verified:
                notes = [f"not from a cold cache: {state.sentence}"]
        options = RecordOptions(staged=str(staged.list_path) if kind == _STAGED else None)
        task = HostTask(tuple(command), {}, _in_directory(directory), options=options)
        run = (out / _run_name(kind, repeat)).absolute()
        try:
            figures, served = _measure(task, run, iterations, warmup, report)
            if kind == _STAGED:
                opens.append(served)
                if not served:
                    raise MissingDataError("no open was redirected to a copy, so the job did not use them")
        except StashtraceError as error:
            return Gain(why=f"{what}: {error}", opens=tuple(opens), notes=tuple(notes))
        times[kind].append(figures.step_ns)
    gain = stalls(times).get("fetch")
    return Gain(step_time(times[_PLAIN]), step_time(times[_STAGED]), gain, "", tuple(opens), tuple(notes))


def _in_directory(directory: str | None) -> Callable[[list[str], Mapping[str, str]], list[str]]:
    """Wrap a command so that it runs where the recorded one did."""
    if directory is None or os.path.realpath(directory) == os.getcwd():
        return here
    return lambda words, environment: ["env", "-C", directory, *words]


def _measure(
    task: HostTask, directory: Path, iterations: int, warmup: int, on_wait: Callable[[], None]
) -> tuple[Figures, int]:
    """Figures of a run, and how many of its opens were served by a copy."""
    run_tasks([task], directory, warmup + iterations, _LONGEST_RUN_S, name=directory.name, on_wait=on_wait)
    trace = load_trace(directory)
    return step_figures(trace, warmup, iterations), staged_opens(trace)


def _name_of(path: str) -> str:
    """Name of a copy; two files of one name from two folders do not meet."""
    name = os.fsdecode(os.fsencode(os.path.basename(path))[-200:])
    return f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}-{name}"


def _is_copied(path: str, copy: Path) -> bool:
    """Return True if there is a copy, made by us: the job will read it in place of the file."""
    try:
        a, b = os.stat(path), os.lstat(copy)
    except OSError:
        return False
    is_own = stat.S_ISREG(b.st_mode) and b.st_uid == os.geteuid()
    return is_own and (a.st_size, a.st_mtime_ns) == (b.st_size, b.st_mtime_ns)


def staging_blocks(answer: Mapping[str, Any]) -> list[Block | None]:
    """Return what was staged and what it brought, to show."""
    count, all_count = answer["files_count"], answer["files_in_all_count"]
    already = count - answer["copied_count"]
    there = f" ({already:,} were there)" if already else ""
    per_step, tier = answer["predicted_step_gain_ns"], answer["method"].partition(", ")[2]
    whole = duration_text(answer["predicted_gain_ns"])
    gain = whole if per_step is None else f"{duration_text(per_step)} a step and rank"
    rows: list[tuple[str, str | Command]] = [
        ("staged", f"{count:,} of {all_count:,} files, {bytes_text(answer['bytes'])}{there}"),
        ("expected", f"at most {gain} less inside I/O calls, all threads added ({_TIERS.get(tier, tier)})"),
    ]
    doubts = []
    if answer["left_out"]:
        doubts.append(f"not copied: {list_some(['{path} ({why})'.format_map(one) for one in answer['left_out']])}")
    if answer["same_disk"]:
        doubts.append("the copies lie on the same disk as the files")
    if (check := answer["check"]) is not None:
        rows += _measured_gain(check)
        doubts += check["notes"]
    use = Command(f"stashtrace run --staged {answer['list']} -- COMMAND")
    return [Facts([*rows, ("use it", use)]), Listing(doubts, style="warn")]


_TIERS = {"no cost": "on a tier that takes no time", "calibration": "tier as calibrated", "stated": "tier as stated"}


def _measured_gain(check: Mapping[str, Any]) -> list[tuple[str, str]]:
    if check["why"]:
        return [("measured", "nothing")]
    before, after = duration_text(round(check["plain_ns"])), duration_text(round(check["staged_ns"]))
    low, high, less = check["low_ns"], check["high_ns"], "more" if check["gain_ns"] < 0 else "less"
    said = f"{count_noun(check['pairs_count'], 'pair')}"
    if low is None:
        said += ", which says nothing of the spread: --repeat 3 or more gives an interval"
    else:
        said += f", between {duration_text(low)} and {duration_text(high)}"
        said += ": the interval holds zero, so that may be nothing" if low <= 0 <= high else ""
    opens = check["staged_opens_counts"]
    served = " to ".join(f"{count:,}" for count in sorted({min(opens), max(opens)}))
    gain = duration_text(round(abs(check["gain_ns"])))
    return [
        ("measured", f"{before} a step before, {after} with the copies: {gain} {less} ({said})"),
        ("served", f"{served} opens of each run by copies"),
    ]
