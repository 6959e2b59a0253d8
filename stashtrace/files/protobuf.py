"""The wire format of protobuf messages, for the few fields that are read or written without the package."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position and the position after it; raise ValueError if it does not end."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("a number that does not end")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & _MASK, at


def read_varints(packed: bytes) -> list[int]:
    """Return the numbers of a packed field; errors as :func:`read_varint`."""
    numbers, at = [], 0
    while at < len(packed):
        number, at = read_varint(packed, at)
        numbers.append(number)
    return numbers


def fields_of(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of the fields with a varint or with bytes; others are skipped.

    Raises ValueError if a field reaches beyond the message, or has an unknown wire type.
    """
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, at = read_varint(message, at)
            yield number, value
        elif wire_type == LENGTH:
            length, at = read_varint(message, at)
            if at + length > len(message):
                raise ValueError("a field reaches beyond its message")
            yield number, message[at : at + length]
            at += length
        elif wire_type in (FIXED64, FIXED32):
            at += 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"a field of wire type {wire_type}")


def sized(message: bytes) -> bytes:
    """Return a message after its length, as files of several messages have it."""
    length, prefix = len(message), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + message
