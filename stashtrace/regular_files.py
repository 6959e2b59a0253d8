"""Read files that others may have put there: regular ones alone, opened without waiting, of a bounded size.

A folder that a team shares, or that came from elsewhere, may hold a pipe, a device or a link to one under the name of
a file: opening a pipe waits for a writer, and a device never ends. Errors of the system are raised unchanged.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

#: Bytes of a file that is read as a whole: descriptions of runs, states, baselines, tables of settings. The run.json of
#: 1,000 processes with the stacks of each has some 100 MB.
LARGEST_BYTES = 256 << 20
#: Unpacked bytes that are allowed whatever the ratio, and the ratio allowed above. Traces shrink to 1/5 to 1/50.
FREE_BYTES = 64 << 20
MOST_EXPANSION = 250


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; raise OSError for anything else, without waiting for a writer."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
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


def read_text(path: str | os.PathLike[str], errors: str = "strict", most_bytes: int = LARGEST_BYTES) -> str:
    """Return the text of a regular file in UTF-8; lines end as they do in a text file."""
    text = read_whole(path, most_bytes).decode("utf-8", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")
