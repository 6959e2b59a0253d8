"""Which files belong to the data that a job reads, by their names: not to the kernel, the interpreter or libraries."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np

from stashtrace.analysis.intervals import Bools
from stashtrace.errors import UsageError
from stashtrace.schema.trace import Trace

#: Which files an analysis counts: those of the data set, or every one.
Files = Literal["data", "all"]
FILES: tuple[Files, ...] = ("data", "all")
#: End of the hint in the error that no file is left.
FILES_HINT = "; --files all counts those of Python and the system too"

#: Prefixes of names without a file on disk; the kernel provides these. Files of /dev/shm are files, in memory.
_PSEUDO = ("/proc/", "/sys/", "/dev/", "pipe:", "socket:", "anon_inode:")
#: Folders of the system and of interpreters.
_PLACES = re.compile(
    r"/(etc|boot|lib|lib32|lib64|libx32|bin|sbin)/"
    r"|/usr/(local/)?(lib|lib32|lib64|libx32|libexec|bin|sbin|include)/"
    r"|/usr/share/(zoneinfo|locale|i18n|ca-certificates|fonts)/"
    r"|.*/(site-packages|dist-packages|__pycache__)/"
    r"|.*/lib(64)?/python[23](\.\d+)?t?/"
)
#: Files of programs, in any folder.
_CODE = re.compile(r".*\.(py[ciwdo]?|so(\.\d+)*)")


def is_pseudo_file(path: str) -> bool:
    """Return True for files of the kernel, pipes and sockets, which cannot be packed, staged or rearranged.

    >>> is_pseudo_file("/proc/self/stat"), is_pseudo_file("/data/proc/stat"), is_pseudo_file("/dev/shm/a.jpg")
    (True, False, False)
    """
    return path.startswith(_PSEUDO) and not path.startswith("/dev/shm/")


def is_data_file(path: str, under: str | None = None) -> bool:
    """Return True if a file may belong to a data set, by its name; unknown names may.

    Folders of the system and of Python do not count, unless ``under`` asks for one of them.

    >>> [is_data_file(p) for p in ("/data/a.jpg", "/usr/lib/libc.so.6", "/v/lib/python3.12/x.json", "/job/train.py")]
    [True, False, False, False]
    >>> is_data_file("/v/site-packages/sklearn/datasets/iris.csv", under="/v/site-packages/sklearn/datasets")
    True
    """
    if is_pseudo_file(path) or _CODE.fullmatch(path):
        return False
    place = _PLACES.match(path)
    return place is None or (under is not None and _PLACES.match(under.rstrip("/") + "/") is not None)


def data_files(trace: Trace, files: Files = "data", under: str | None = None) -> Bools:
    """Return a mask of the files that count, by path code.

    Raises UsageError if ``files`` is neither ``data`` nor ``all``.
    """
    if files not in FILES:
        raise UsageError(f"files cannot be {files!r}", hint="data, or all with those of the interpreter and the system")
    if files == "all":
        return np.ones(len(trace.strings), dtype=bool)
    return np.array([is_data_file(text, under) for text in trace.strings], dtype=bool)
