"""Make files that appear whole or must be new; read regular ones alone, without waiting, up to a size.

The content is written next to the target, under a random name that must be new: a link that another user put there is
never followed, and only the owner can read the file before it has its final mode. Where others may rename what lies in
the folder, it is written into a new folder of ours, which is held by its descriptor. Partial files of a killed process
are removed by the next one that writes the same target. A new file in the directory of a run, or of a characterization,
has the mode of that run's or characterization's file.

A folder that a team shares, or that came from elsewhere, may hold a pipe, a device or a link to one under the name of
a file: opening a pipe waits for a writer, and a device never ends. Such files are read by the functions at the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stashtrace.errors import OutputError

#: Files whose mode a new one next to them follows.
_EXAMPLES = ("run.json", "characterization.json")
#: Bytes of a file that is read as a whole: descriptions of runs, states, baselines, tables of settings. The run.json of
#: 1,000 processes with the stacks of each has some 100 MB.
LARGEST_BYTES = 256 << 20
#: Unpacked bytes that are allowed whatever the ratio, and the ratio allowed above. Traces shrink to 1/5 to 1/50.
FREE_BYTES = 64 << 20
MOST_EXPANSION = 250
_LEFT = re.compile(r"\.part(\d+)-([0-9a-f]{8})-[0-9a-f]{16}")


@contextmanager
def whole_file(path: Path, *, own_mode: bool = False, tidy: bool = True) -> Iterator[Path]:
    """Path to write to; it becomes ``path`` at the end, or vanishes on an error.

    Only its owner can read it while it is written. Then it gets the mode of the file that it replaces. A new file gets
    that of the run or characterization in whose directory it is, elsewhere the one of the user's umask.
    Errors of the system are raised unchanged.

    A target that is not a file, such as ``/dev/null``, is refused: it would be replaced.

    With ``own_mode`` the file keeps the mode that the caller gives it. To write many files into one folder, call
    :func:`remove_left_in` once and pass ``tidy=False``: looking for leftovers lists the whole folder.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a folder is refused by the system
            raise OSError(errno.EINVAL, "it is a device or a pipe, no file")
    with _partial(path, tidy) as partial:
        yield partial
        if not own_mode:
            give_mode(partial, _final_mode(path, partial.stat().st_uid))
        partial.replace(path)


def write_whole(path: Path, text: str) -> None:
    """Replace the file by this text, in one step; errors of the system are raised as they are."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def claim_file(path: Path, content: str | bytes) -> bool:
    """Make the file with this content, in one step, unless it exists; return whether it was made.

    On a file system without links, a file that appears in between is replaced.
    """
    with _partial(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        give_mode(partial, _final_mode(path, partial.stat().st_uid))
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        except OSError:
            partial.replace(path)
        return True


@contextmanager
def folder_next_to(path: Path) -> Iterator[Path]:
    """A new folder next to a target, for its owner alone, which is gone at the end unless it was renamed.

    As with files, what a killed process left of the same target is removed first.
    """
    remove_left(path)
    with _new_name(path) as folder:
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def new_file(path: str | Path, mode: int = 0o600) -> int:
    """Make a file that must not exist, open it to be read and written, and return its descriptor.

    A link of this name, wherever it leads, is something that exists. Errors of the system are raised unchanged.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def new_log(path: Path) -> BinaryIO:
    """Make a file for what a process prints, in place of what has its name."""
    path.unlink(missing_ok=True)
    return os.fdopen(new_file(path, 0o666), "wb")


def try_folder(folder: Path) -> tuple[int, str]:
    """Write a little into a folder and remove it; return the free bytes, and who else may replace what is in it.

    The latter is empty, or fit for a sentence. It names a user who owns the folder, and everybody if all may write and
    the sticky bit is not set; not root, and not the group, whose members were let in on purpose. Root may work in the
    folders of others. Where files have no modes of their own, as on disks of Windows, those of folders say nothing.
    """
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    name = f".stashtrace-probe.{secrets.token_hex(8)}"
    try:
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=place)
        try:
            for _ in range(16):
                os.write(made, b"\0" * 4096)
            own, disk = os.fstat(made), os.fstatvfs(made)
        finally:
            os.close(made)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=place)
        known = os.fstat(place)
    finally:
        os.close(place)
    others, free_bytes = "", disk.f_bavail * disk.f_frsize
    if known.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH and not own.st_mode & stat.S_IWOTH:
        others = "every user of this machine"
    elif os.geteuid() != 0 and known.st_uid not in (0, os.geteuid(), own.st_uid):
        others = f"its owner {_user_name(known.st_uid)}"
    return free_bytes, others


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


@contextmanager
def _partial(path: Path, tidy: bool = True) -> Iterator[Path]:
    """A new file next to the target, which is gone at the end unless it was renamed."""
    if tidy:
        remove_left(path)
    with _new_name(path) as partial:
        try:
            os.close(new_file(partial))
            yield partial
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def _new_name(path: Path) -> Iterator[Path]:
    """A path on the file system of the target that nothing has, and that others cannot give to something else."""
    candidate = path.with_name(f"{path.name}.part{os.getpid()}-{_host()}-{secrets.token_hex(8)}")
    if not others_may_rename(path.parent) or not os.path.isdir("/proc/self/fd"):
        yield candidate
        return
    candidate.mkdir(mode=0o700)
    place = os.open(candidate, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    inside = Path(f"/proc/self/fd/{place}/new")  # leads to our folder, whatever has its name by now
    try:
        inside.mkdir(mode=0o700)
        if os.fstat(place).st_uid != inside.stat().st_uid:
            raise PermissionError(errno.EPERM, "another user has replaced a folder of ours")
        yield inside / path.name
    finally:
        shutil.rmtree(inside, ignore_errors=True)
        os.close(place)
        with contextlib.suppress(OSError):  # not empty: it is somebody else's by now
            candidate.rmdir()


def others_may_rename(folder: Path) -> bool:
    """Return True for a folder in which users other than us and root may give a file's name to another one."""
    known = folder.stat()
    shared = known.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not known.st_mode & stat.S_ISVTX
    return bool(shared or known.st_uid not in (0, os.geteuid()))


def _host() -> str:
    """Tag of this host: several hosts may write into one folder, and process ids are those of one host."""
    return f"{zlib.crc32(os.uname().nodename.encode()):08x}"


def remove_left(path: Path) -> None:
    """Remove partial versions of this file that processes of this host left behind when they died."""
    _remove_left(path.parent, re.compile(re.escape(path.name) + _LEFT.pattern))


def remove_left_in(folder: Path) -> None:
    """The same of all files in a folder."""
    _remove_left(folder, re.compile(f".+{_LEFT.pattern}", re.DOTALL))


def _remove_left(folder: Path, pattern: re.Pattern[str]) -> None:
    with contextlib.suppress(OSError):  # a folder that cannot be listed is reported by who writes into it
        for name in os.listdir(folder):
            match = pattern.fullmatch(name)
            if match is None or match[2] != _host() or _is_alive(int(match[1])):
                continue
            left = folder / name
            known = left.lstat()
            if known.st_uid != os.geteuid():
                continue
            if stat.S_ISDIR(known.st_mode):
                shutil.rmtree(left, ignore_errors=True)
            elif stat.S_ISREG(known.st_mode):
                left.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def give_mode(path: Path, mode: int) -> None:
    """Change the mode of a file made for its owner alone; file systems without modes, of Windows, refuse it."""
    with contextlib.suppress(PermissionError):
        path.chmod(mode)


def _final_mode(path: Path, own_uid: int) -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    for example in (path, *map(path.with_name, _EXAMPLES)):
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(example.stat().st_mode) & (0o7777 if example is path else 0o666)
            # Another user's, who may have put it there, gives no right that the umask takes.
            return mode if example.lstat().st_uid == own_uid else mode & 0o666 & ~mask
    return 0o666 & ~mask


# Reading --------------------------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a regular file and return its descriptor; raise OSError for anything else, without waiting for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "it is a device or a pipe, no file", os.fspath(path))


def open_binary(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to be read as bytes, buffered."""
    return os.fdopen(open_regular(path), "rb")


def read_whole(path: str | os.PathLike[str], most_bytes: int = LARGEST_BYTES) -> bytes:
    """Return the content of a regular file; raise OSError if it is larger than any of its kind."""
    with open_binary(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most_bytes + 1) if size <= most_bytes else b""
    if size > most_bytes or len(content) > most_bytes:
        raise OSError(errno.EFBIG, "it is larger than any file of its kind", os.fspath(path))
    return content


def read_text(path: str | os.PathLike[str], errors: str = "strict") -> str:
    """Return the text of a regular file in UTF-8; lines end as they do in a text file."""
    text = read_whole(path).decode("utf-8", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def complete_file(path: Path, hint: str = "choose another file with -o") -> Iterator[Path]:
    """As :func:`whole_file`, for a file that the user named: with a hint in its errors.

    Raises OutputError if the system refuses: no such folder, no permission, disk full.
    """
    with written_to(path, hint), whole_file(path) as partial:
        yield partial


@contextmanager
def written_to(path: Path, hint: str) -> Iterator[None]:
    """Raise what the system refuses inside as OutputError about a file or folder that is written there.

    Raises OutputError: in place of an OSError. A broken pipe stays one.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}", hint=hint) from error
