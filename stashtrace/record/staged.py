"""The list of files of which copies are opened in their place: written by a launcher, read by the preloaded runtime.

    head (magic, slots, bytes of texts) | slots | texts that end in zero
    slot: hash, where the key is, where the value's is, size and time of change of the file as it was copied

A hash table with open addressing, so that a look-up in the traced process is a hash and a comparison: no allocation,
no lock. A file is the key of its copy; ``>`` and a copy are the key of the file, for descriptors that were inherited.
``csrc/collectors/posix_io/staged.cpp`` is the other half.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stashtrace.errors import CaptureError, FormatError
from stashtrace.whole_files import whole_file

_MAGIC = b"SHSTAG02"
_HEAD = struct.Struct("<8sQQQ")
_SLOT = struct.Struct("<QIIqq")
#: In place of the size: the file was changed since it was copied.
_FORGOTTEN = -1
_BACK = b">"
#: Hash of a slot that holds nothing.
_EMPTY = bytes(8)
_MOST_TEXT_BYTES = 1 << 32


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a file.

    Attributes
    ----------
    path : str
        Absolute name of the copy.
    size_bytes, mtime_ns : int
        Of the file when it was copied.
    """

    path: str
    size_bytes: int
    mtime_ns: int


def write_staged_list(path: Path, copies: Mapping[str, Copy]) -> None:
    """Write the list, under a name of its own first: a job may be using the old one.

    Parameters
    ----------
    path : Path
    copies : mapping of str to Copy
        By the absolute name of the file, as the job opens it.
    """
    count = 2
    while count < 4 * len(copies) + 2:  # two entries for each, half of the slots stay empty
        count *= 2
    slots = bytearray(count * _SLOT.size)
    texts = bytearray(b"\0")

    def place(text: bytes) -> int:
        texts.extend(text + b"\0")
        return len(texts) - len(text) - 1

    def enter(found: int, *values: int) -> None:
        at = (found & (count - 1)) * _SLOT.size
        while slots[at : at + 8] != _EMPTY:
            at = (at + _SLOT.size) % len(slots)
        _SLOT.pack_into(slots, at, found, *values)

    for name, copy in copies.items():
        key, value = os.fsencode(name), os.fsencode(copy.path)
        back = place(_BACK + value)
        key_at = place(key)
        enter(_hash(key), key_at, back + 1, copy.size_bytes, copy.mtime_ns)
        enter(_hash(_BACK + value), back, key_at, 0, 0)
    if len(texts) >= _MOST_TEXT_BYTES:
        raise CaptureError(f"the names of {len(copies)} files are too long for one list", hint="stage less with --size")
    _replace(path, b"".join((_HEAD.pack(_MAGIC, count, len(texts), 0), slots, texts)))


def read_staged_list(path: Path) -> dict[str, Copy]:
    """Name -> copy, of files that were not changed meanwhile by a job that used the list.

    Raises
    ------
    FormatError
        If the file is none.
    """
    return {name: copy for _, name, copy in _entries(_content(path)) if copy.size_bytes != _FORGOTTEN}


def check_staged_list(path: Path) -> None:
    """Raise FormatError if a file is no list, or not a whole one."""
    _content(path)


def list_for_run(source: Path, target: Path) -> tuple[int, list[str]]:
    """Write the list that the processes of one run use, without files that are not what was copied.

    Parameters
    ----------
    source : Path
        As `stashtrace stage` wrote it.
    target : Path

    Returns
    -------
    tuple of int and list of str
        Files that have a usable copy; those that were changed since, or whose copy is gone.

    Raises
    ------
    FormatError
        If the source is no list.
    CaptureError
        If the target cannot be written.
    """
    data = _content(source)
    count, changed = 0, []
    for at, name, copy in _entries(data):
        if copy.size_bytes == _FORGOTTEN or not _holds(name, copy):
            _SLOT.pack_into(data, at, *_SLOT.unpack_from(data, at)[:3], _FORGOTTEN, 0)
            changed.append(name)
        else:
            count += 1
    try:
        _replace(target, bytes(data))
    except OSError as error:
        raise CaptureError(f"cannot write {target}: {(error.strerror or str(error)).lower()}") from error
    return count, changed


def _holds(name: str, copy: Copy) -> bool:
    try:
        now, there = os.stat(name), os.stat(copy.path)
    except OSError:
        return False
    return (now.st_size, now.st_mtime_ns, there.st_size) == (copy.size_bytes, copy.mtime_ns, copy.size_bytes)


def _content(path: Path) -> bytearray:
    try:
        data = bytearray(path.read_bytes())
    except OSError as error:
        raise FormatError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    if len(data) < _HEAD.size or data[:8] != _MAGIC:
        raise FormatError(f"{path} is no list of staged files", hint="`stashtrace stage` writes one")
    _, count, length, _ = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + count * _SLOT.size + length or not length or data[-1]:
        raise FormatError(f"{path} is cut off", hint="stage the files again")
    return data


def _entries(data: bytearray) -> Iterator[tuple[int, str, Copy]]:
    """(Where the slot is, file, copy)."""
    _, count, _, _ = _HEAD.unpack_from(data)
    begin = _HEAD.size + count * _SLOT.size

    def text(at: int) -> str:
        return os.fsdecode(bytes(data[begin + at : data.index(0, begin + at)]))

    slots = _SLOT.iter_unpack(memoryview(data)[_HEAD.size : begin])
    for at, (found, key, value, size, mtime) in zip(range(_HEAD.size, begin, _SLOT.size), slots, strict=True):
        if found and begin + max(key, value) >= len(data):
            raise FormatError("a list of staged files is damaged", hint="stage the files again")
        if found and data[begin + key] != _BACK[0]:
            yield at, text(key), Copy(text(value), size, mtime)


def _replace(path: Path, content: bytes) -> None:
    with whole_file(path) as partial:
        partial.write_bytes(content)


def _hash(text: bytes) -> int:
    """FNV-1a of 64 bits; 0 stands for an empty slot."""
    value = 0xCBF29CE484222325
    for byte in text:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value or 1
