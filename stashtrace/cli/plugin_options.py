"""Command-line options of an analysis of another package, derived from the signature of its function.

``*, limit_ns: int = 0, kind: Literal["read", "write"] | None = None`` becomes ``--limit-ns INT`` and
``--kind {read,write}``. The help is what the numpydoc section ``Parameters`` says.
"""

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
from stashtrace.registry import Plugin

#: Type of a parameter -> metavar of its option.
_SCALARS: dict[object, str] = {str: "TEXT", int: "INT", float: "NUMBER", Path: "FILE"}
_SEQUENCES = (list, tuple, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)
#: Begins attributes of plugin options, so that a parameter may be called ``name`` or ``paths``.
_DEST = "option_of_plugin_"
_UNIONS = (typing.Union, types.UnionType)


def add_options(parser: Parser, plugin: Plugin, function: Callable[..., object]) -> dict[str, str]:
    """Add an option for each parameter of an analysis but the first, which is the trace.

    ``parser``: has the options that every analysis has. ``plugin``: the package that the function is from; errors name
    it. Returns parameter -> attribute of the namespace with its value, which is None if the option is not given. Raises
    PluginError if a parameter has the name of an option that every analysis has, or is required and of no type that an
    option can have.
    """
    parameters = list(inspect.signature(function).parameters.values())[1:]
    hints = _hints(function)
    texts = parameter_texts(function)
    group = parser.add_argument_group(f"options of {plugin.name}")
    attributes: dict[str, str] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        settings = _settings(hints.get(parameter.name, type(parameter.default)))
        if settings is None:
            if required:
                raise plugin.error(f"needs {parameter.name!r}, of a type that no option can have")
            continue  # for Python callers alone
        text = texts.get(parameter.name, "")
        if not required and parameter.default is not None:
            shown = {True: "yes", False: "no"}[parameter.default] if settings.get("action") else parameter.default
            text = f"{text} (default {shown})".strip()
        try:
            group.add_argument(
                "--" + parameter.name.replace("_", "-"),
                dest=_DEST + parameter.name,
                required=required,
                help=text.replace("%", "%%"),
                **settings,
            )
        except argparse.ArgumentError as error:
            raise plugin.error(
                f"has a parameter {parameter.name!r}, and every analysis has an option of this name"
            ) from error
        attributes[parameter.name] = _DEST + parameter.name
    return attributes


def parameter_texts(function: Callable[..., object]) -> dict[str, str]:
    """Return the description of each parameter, on one line, from the section ``Parameters`` of the docstring."""
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
    """Return the first line of the docstring without its full stop; empty if there is none."""
    return (inspect.getdoc(function) or "").partition("\n")[0].strip().rstrip(".")


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    """Return the types of the parameters, without those that only a type checker can resolve."""
    target = inspect.unwrap(function)
    try:
        return typing.get_type_hints(target)
    except Exception:  # annotations are any expression, and may name what is imported for type checkers alone
        hints: dict[str, Any] = {}
        scope = {**vars(typing), **getattr(target, "__globals__", {})}
        for name, annotation in getattr(target, "__annotations__", {}).items():
            with contextlib.suppress(Exception):  # then the type of the default counts
                hints[name] = eval(annotation, scope) if isinstance(annotation, str) else annotation
        return {name: hint for name, hint in hints.items() if not isinstance(hint, str)}


def _settings(hint: Any) -> dict[str, Any] | None:
    """Return the arguments of ``add_argument`` for values of a type; None if no option can have it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        kinds = [kind for kind in inner if kind is not type(None)]
        # `str | Path` and the like: the first type that an option can have.
        return next((settings for kind in kinds if (settings := _settings(kind)) is not None), None)
    if origin is typing.Literal:
        kind = type(inner[0])
        same = all(type(value) is kind for value in inner)
        return {"choices": inner, "type": kind} if same and kind in (str, int) else None
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint in _SCALARS:
        return {"type": hint, "metavar": _SCALARS[hint]}
    if origin in _SEQUENCES and inner and inner[0] in _SCALARS:
        return {
            "type": _list_reader(inner[0], tuple if origin is tuple else list),
            "metavar": f"{_SCALARS[inner[0]]},...",
        }
    return None


def _list_reader(kind: Callable[[str], Any], container: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return a reader of values with commas between them."""

    def read(text: str) -> Any:
        try:
            return container(kind(part.strip()) for part in text.split(",") if part.strip())
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list with commas: {error}") from error

    return read
