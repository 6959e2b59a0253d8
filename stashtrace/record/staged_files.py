"""The list of staged files, whose copies are opened in their place. Launchers write it, the preloaded runtime reads it.

    head (magic, number of slots, bytes of texts) | slots | texts, each ended by a zero byte
    slot: hash, offset of the key, offset of the value, size and time of change of the file when it was copied

It is a hash table with open addressing, so that a look-up in the traced process is a hash and a comparison, without
allocation or lock. The name of a file is the key of its copy; ``>`` and the name of a copy are the key of its file, for
inherited descriptors. ``csrc/collectors/posix_io/staged.cpp`` is the other half.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stashtrace.errors import CaptureError, FormatError, say_why
from stashtrace.files.whole_files import read_whole, whole_file

_MAGIC = b"SHSTAG02"
_HEAD = struct.Struct("<8sQQQ")
_SLOT = struct.Struct("<QIIqq")
#: In place of the size: the file has changed since it was copied.
_FORGOTTEN = -1
_BACK = b">"
#: Hash of an empty slot.
_EMPTY = bytes(8)
_MOST_TEXT_BYTES = 1 << 32


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a file."""

    #: Absolute path of the copy.
    path: str
    #: Of the file when it was copied.
    size_bytes: int
    mtime_ns: int


def write_staged_list(path: Path, copies: Mapping[str, Copy]) -> None:
    """Write the list, in one step, since a job may be using the old one.

    ``path``: where the list goes. ``copies``: by the absolute path of the file, as the job opens it. Raises
    CaptureError if the paths are too long for one list.
    """
    count = 2
    while count < 4 * len(copies) + 2:  # two entries for each, half of the slots stay empty
        count *= 2
    slots = bytearray(count * _SLOT.size)
    texts = bytearray(b"\0")

    def add_text(text: bytes) -> int:
        texts.extend(text + b"\0")
        return len(texts) - len(text) - 1

    def add_slot(key_hash: int, *values: int) -> None:
        offset = (key_hash & (count - 1)) * _SLOT.size
        while slots[offset : offset + 8] != _EMPTY:
            offset = (offset + _SLOT.size) % len(slots)
        _SLOT.pack_into(slots, offset, key_hash, *values)

    for name, copy in copies.items():
        key, value = os.fsencode(name), os.fsencode(copy.path)
        back_offset = add_text(_BACK + value)
        key_offset = add_text(key)
        add_slot(_hash(key), key_offset, back_offset + 1, copy.size_bytes, copy.mtime_ns)
        add_slot(_hash(_BACK + value), back_offset, key_offset, 0, 0)
    if len(texts) >= _MOST_TEXT_BYTES:
        raise CaptureError(f"the names of {len(copies)} files are too long for one list", hint="stage less with --size")
    _replace(path, b"".join((_HEAD.pack(_MAGIC, count, len(texts), 0), slots, texts)))


def read_staged_list(path: Path) -> dict[str, Copy]:
    """Return the copies by the paths of their files; files that a job has changed are left out.

    Raises FormatError if the file is not a list of staged files.
    """
    return {name: copy for _, name, copy in _entries(_content(path)) if copy.size_bytes != _FORGOTTEN}


def check_staged_list(path: Path) -> None:
    """Raise FormatError unless a file is a list of staged files, and whole."""
    _content(path)


def list_for_run(source: Path, target: Path) -> tuple[int, list[str]]:
    """Write the list for the processes of one run, without the files whose copies are out of date.

    Returns number of files with a usable copy; paths of those that have changed since, or whose copy is gone. Raises
    FormatError if the source is not a list of staged files. Raises CaptureError if the target cannot be written.
    """
    data = _content(source)
    count, changed = 0, []
    for offset, name, copy in _entries(data):
        if copy.size_bytes == _FORGOTTEN or not _is_current(name, copy):
            _SLOT.pack_into(data, offset, *_SLOT.unpack_from(data, offset)[:3], _FORGOTTEN, 0)
            changed.append(name)
        else:
            count += 1
    try:
        _replace(target, bytes(data))
    except OSError as error:
        raise CaptureError(f"cannot write {target}: {say_why(error)}") from error
    return count, changed


def _is_current(name: str, copy: Copy) -> bool:
    try:
        file, copied = os.stat(name), os.stat(copy.path)
    except OSError:
        return False
    return (file.st_size, file.st_mtime_ns, copied.st_size) == (copy.size_bytes, copy.mtime_ns, copy.size_bytes)


def _content(path: Path) -> bytearray:
    try:
        data = bytearray(read_whole(path))
    except OSError as error:
        raise FormatError(f"cannot read {path}: {say_why(error)}") from error
    if len(data) < _HEAD.size or data[:8] != _MAGIC:
        raise FormatError(f"{path} is not a list of staged files", hint="`stashtrace stage` writes one")
    _, count, length, _ = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + count * _SLOT.size + length or not length or data[-1]:
        raise FormatError(f"{path} is cut off", hint="stage the files again")
    return data


def _entries(data: bytearray) -> Iterator[tuple[int, str, Copy]]:
    """Yield (offset of the slot, path of the file, copy)."""
    _, count, _, _ = _HEAD.unpack_from(data)
    begin = _HEAD.size + count * _SLOT.size

    def text(offset: int) -> str:
        return os.fsdecode(bytes(data[begin + offset : data.index(0, begin + offset)]))

    slots = _SLOT.iter_unpack(memoryview(data)[_HEAD.size : begin])
    for offset, (key_hash, key, value, size, mtime) in zip(range(_HEAD.size, begin, _SLOT.size), slots, strict=True):
        if key_hash and begin + max(key, value) >= len(data):
            raise FormatError("a list of staged files is damaged", hint="stage the files again")
        if key_hash and data[begin + key] != _BACK[0]:
            yield offset, text(key), Copy(text(value), size, mtime)


def _replace(path: Path, content: bytes) -> None:
    with whole_file(path) as partial:
        partial.write_bytes(content)


def _hash(text: bytes) -> int:
    """Return the FNV-1a hash of 64 bits; never 0, which marks an empty slot."""
    value = 0xCBF29CE484222325
    for byte in text:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value or 1
