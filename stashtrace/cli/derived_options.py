"""Command-line options of an analysis of another package, derived from the signature of its function.

``*, limit_ns: int = 0, kind: Literal["read", "write"] | None = None`` becomes ``--limit-ns INT`` and
``--kind {read,write}``. The help is what the numpydoc section ``Parameters`` says.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import collections.abc
import contextlib
import inspect
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stashtrace.cli.parsing import Parser
from stashtrace.entry_points import Plugin

#: Types of values that a word can be read as.
_SCALARS: dict[object, str] = {str: "TEXT", int: "INT", float: "NUMBER", Path: "FILE"}
_SEQUENCES = (list, tuple, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)
#: Keeps a parameter called ``name`` or ``paths`` apart from what every command line has.
_DEST = "option_of_plugin_"
_UNIONS = (typing.Union, types.UnionType)


def add_options(parser: Parser, plugin: Plugin, function: Callable[..., object]) -> dict[str, str]:
    """Add an option for each parameter of an analysis but the first, which is the trace.

    Parameters
    ----------
    parser : Parser
        Has the options of every analysis already.
    plugin : Plugin
        Where the function is from; its errors name it.
    function : callable

    Returns
    -------
    dict of str to str
        Parameter -> where the namespace has its value, None if the option is not given.

    Raises
    ------
    PluginError
        If a parameter has the name of an option that every analysis has, or must be given and no word can stand for it.
    """
    parameters = list(inspect.signature(function).parameters.values())[1:]
    hints = _hints(function)
    texts = parameter_texts(function)
    group = parser.add_argument_group(f"options of {plugin.name}")
    places: dict[str, str] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        how = _how(hints.get(parameter.name, type(parameter.default)))
        if how is None:
            if required:
                raise plugin.error(f"needs {parameter.name!r}, of a type that no word on a command line can have")
            continue  # for Python callers alone
        text = texts.get(parameter.name, "")
        if not required and parameter.default is not None:
            shown = {True: "yes", False: "no"}[parameter.default] if how.get("action") else parameter.default
            text = f"{text} (default {shown})".strip()
        try:
            group.add_argument(
                "--" + parameter.name.replace("_", "-"),
                dest=_DEST + parameter.name,
                required=required,
                help=text.replace("%", "%%"),
                **how,
            )
        except argparse.ArgumentError as error:
            raise plugin.error(
                f"calls a parameter {parameter.name!r}, which every analysis has an option for"
            ) from error
        places[parameter.name] = _DEST + parameter.name
    return places


def parameter_texts(function: Callable[..., object]) -> dict[str, str]:
    """What the section ``Parameters`` of a numpydoc docstring says of each parameter, on one line."""
    document = inspect.getdoc(function) or ""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^[^\n]+\n-{3,}$|\Z)", document, re.M | re.S)
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else []:
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.partition(":")[0].split(",")]
        elif line.strip():
            texts.update({name: f"{texts.get(name, '')} {line.strip()}".strip() for name in names})
    return {name: text.rstrip(".") for name, text in texts.items()}


def first_sentence(function: Callable[..., object]) -> str:
    """First line of a docstring without its full stop, empty if there is none."""
    return (inspect.getdoc(function) or "").partition("\n")[0].strip().rstrip(".")


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    """Types by parameter; without those that only a type checker can resolve."""
    target = inspect.unwrap(function)
    try:
        return typing.get_type_hints(target)
    except Exception:  # annotations are any expression, and may name what is imported for type checkers alone
        found: dict[str, Any] = {}
        scope = {**vars(typing), **getattr(target, "__globals__", {})}
        for name, annotation in getattr(target, "__annotations__", {}).items():
            with contextlib.suppress(Exception):  # of this one the type of the default counts
                found[name] = eval(annotation, scope) if isinstance(annotation, str) else annotation
        return {name: hint for name, hint in found.items() if not isinstance(hint, str)}


def _how(hint: Any) -> dict[str, Any] | None:
    """Arguments of ``add_argument`` for values of a type; None if no word can stand for one."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        kinds = [kind for kind in inner if kind is not type(None)]
        ways = [way for kind in kinds if (way := _how(kind)) is not None]
        # `str | Path` and the like: a word is read as the first type that a word can have.
        return ways[0] if ways else None
    if origin is typing.Literal:
        kind = type(inner[0])
        same = all(type(value) is kind for value in inner)
        return {"choices": inner, "type": kind} if same and kind in (str, int) else None
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint in _SCALARS:
        return {"type": hint, "metavar": _SCALARS[hint]}
    if origin in _SEQUENCES and inner and inner[0] in _SCALARS:
        return {"type": _listed(inner[0], tuple if origin is tuple else list), "metavar": f"{_SCALARS[inner[0]]},..."}
    return None


def _listed(kind: Callable[[str], Any], container: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Reader of values with commas between them."""

    def read(text: str) -> Any:
        try:
            return container(kind(part.strip()) for part in text.split(",") if part.strip())
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no list with commas: {error}") from error

    return read
