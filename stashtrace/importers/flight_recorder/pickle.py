"""Reads pickles of plain data without running code from them.

A pickle is a program for a stack machine, and its ``GLOBAL`` and ``REDUCE`` instructions call whatever they name. The
machine here has neither: it knows numbers, texts, lists, tuples and dicts, and a file that asks for more is refused.
Unlike the unpicklers of the standard library, it returns what is complete before a cut.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from stashtrace.errors import ImporterError
from stashtrace.importers.import_limits import MOST_INSTRUCTIONS, OutOfBoundsError, check_values

_MARK = object()
#: Instructions that call, import or resolve something.
_CALLS = frozenset(
    ["GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID", "BINPERSID"]
    + ["EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"]
)
_VALUES = frozenset(
    ["INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"]
    + ["UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"]
    + ["STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"]
)
_KEYS = (str, int, float, bytes, type(None))
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NEW: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}


def read_pickle(data: bytes, name: str) -> tuple[Any, bool]:
    """Return the value of a pickle, and whether the pickle is whole.

    Raises ImporterError if it asks for anything but plain data, or is damaged in its first instructions.
    """
    machine = _Machine()
    value, whole = _run(machine, data, name)
    check_values(value, name)
    return value, whole


def _run(machine: _Machine, data: bytes, name: str) -> tuple[Any, bool]:
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number > MOST_INSTRUCTIONS:
                raise OutOfBoundsError(name, f"has more than {MOST_INSTRUCTIONS} instructions")
            if opcode.name in _CALLS:
                instruction = " ".join([opcode.name, str(argument or "")[:60]]).strip()
                raise ImporterError(
                    f"{name} asks to run code while it is read ({instruction})",
                    hint="a dump of the Flight Recorder holds plain data only: do not open this file with pickle",
                )
            machine.run(opcode.name, argument)
        return machine.top(), True
    except (ValueError, IndexError, KeyError, TypeError, OverflowError):
        return machine.unwound(name), False


class _Machine:
    """Stack and memo of one pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def top(self) -> Any:
        """Return the value of the pickle, once it has ended."""
        return self._stack[-1]

    def unwound(self, name: str) -> Any:
        """Return what is complete before a cut, put into the containers that are still open."""
        while any(item is _MARK for item in self._stack):
            items = self._popped()
            holder = self._stack[-1] if self._stack else None
            if isinstance(holder, list):
                holder.extend(items)
            elif isinstance(holder, dict):
                for key, value in zip(items[::2], items[1::2], strict=False):
                    if isinstance(key, str | int):
                        holder[key] = value
            else:
                self._stack.append(tuple(items))
        if not self._stack:
            raise ImporterError(f"{name} is not a pickle, or is cut in its first bytes")
        return self._stack[0]

    def run(self, name: str, argument: Any) -> None:
        """Carry out one instruction."""
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _NEW:
            stack.append(_NEW[name]())
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name not in ("PROTO", "FRAME", "STOP"):
            self._combine(name)

    def _combine(self, name: str) -> None:
        stack = self._stack
        if name == "APPENDS":
            items = self._popped()
            _top(stack, list).extend(items)
        elif name == "SETITEMS":
            items = self._popped()
            _set(_top(stack, dict), items)
        elif name == "APPEND":
            item = stack.pop()
            _top(stack, list).append(item)
        elif name == "SETITEM":
            items = [stack.pop(-2), stack.pop()]
            _set(_top(stack, dict), items)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            items = stack[-count:]
            del stack[-count:]
            stack.append(tuple(items))
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self._popped()
            container: Any = tuple(items) if name == "TUPLE" else items
            if name == "DICT":
                container = {}
                _set(container, items)
            stack.append(container)
        else:
            raise ValueError(name)

    def _popped(self) -> list[Any]:
        """Remove the uppermost mark and the items above it; return the items."""
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:  # an IndexError where there is none
            at -= 1
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items


def _top(stack: list[Any], kind: type) -> Any:
    """Return the uppermost value; raise TypeError if it is of another kind."""
    if not isinstance(stack[-1], kind):
        raise TypeError(f"no {kind.__name__}")
    return stack[-1]


def _set(holder: dict[Any, Any], items: list[Any]) -> None:
    if len(items) % 2:
        raise ValueError("a key without a value")
    for at in range(0, len(items), 2):
        if not isinstance(items[at], _KEYS):  # to hash a tuple of tuples may take for ever
            raise TypeError("a key that no dump has")
        holder[items[at]] = items[at + 1]
