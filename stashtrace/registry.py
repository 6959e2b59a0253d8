"""What can be chosen by name: analyses, importers and exporters, our own and those of other packages.

A package adds one by an entry point in the group of that kind. Entry points are read only when none of our own fits, or
for the list of all, so other users do not pay for them. A broken one is left out with one line of warning; it is an
error only when a user asks for it by name.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stashtrace.errors import PluginError, PluginWarning, StashtraceError, UsageError, one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
#: What can be added -> group of its entry points.
GROUPS = {"analysis": "stashtrace.analyses", "importer": "stashtrace.importers", "exporter": "stashtrace.exporters"}
#: A list of no more names is shown whole; of a longer one, the name nearest to what was asked for.
_SHORT_LIST = 20


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point of another package; ``kind`` is a key of ``GROUPS``, ``package`` a name and version."""

    kind: str
    name: str
    package: str
    entry_point: EntryPoint

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of {self.package}"

    def load(self) -> Any:
        """Import the object that the entry point names; raise PluginError if that fails for any reason."""
        try:
            return self.entry_point.load()
        except (Exception, SystemExit) as error:
            raise self.error(f"cannot be loaded from {self.entry_point.value!r}: {one_line(error)}") from error

    def error(self, problem: str) -> PluginError:
        """Return the error whose sentence begins with the name of this entry point and goes on with ``problem``."""
        return PluginError(
            f"{self} {problem}", hint=f"--debug shows where; tell the authors of {self.package}, or uninstall it"
        )

    def function(
        self, result: type[T], *, called: str, passed_on: type[Exception] | tuple[()] = ()
    ) -> Callable[..., T]:
        """Load a function that has to return a ``result``, which messages name as ``called``.

        What it raises becomes a PluginError, but for StashtraceError and ``passed_on``.
        """
        function = self.load()
        if not callable(function) or inspect.isclass(function):
            raise self.error(f"is not a function but a {type(function).__name__}")

        @functools.wraps(function)
        def checked(*arguments: Any, **options: Any) -> T:
            require_options(f"{self.kind} {self.name!r}", function, options)
            try:
                made = function(*arguments, **options)
            except (StashtraceError, MemoryError):
                raise
            except Exception as error:
                if isinstance(error, passed_on):
                    raise
                raise self.error(f"failed: {one_line(error)}") from error
            if not isinstance(made, result):
                raise self.error(f"returned a {type(made).__name__}, not a {called}")
            return made

        return checked


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """A list of names and what stands behind each, imported on use."""

    kind: str
    #: (name, "module:function" or "module", one-line help), as they are listed.
    own: tuple[tuple[str, str, str], ...]
    #: Loads what another package adds and holds it to what ours keep.
    of_plugin: Callable[[Plugin], T]
    #: Further names that no package may use.
    reserved: tuple[str, ...] = ()

    def plugins(self) -> dict[str, Plugin]:
        """Return what other packages add, by name, in the order in which Python finds them."""
        taken = frozenset([*self.reserved, *(name for name, _, _ in self.own)])
        return _usable(self.kind, taken, tuple(sys.path))

    def names(self) -> list[str]:
        """Return all names, our own first."""
        return [*(name for name, _, _ in self.own), *self.plugins()]

    def __iter__(self) -> Iterator[tuple[str, T]]:
        """Import one after the other; other packages are searched only after our own."""
        yield from ((name, self.find(name)) for name, _, _ in self.own)
        yield from ((name, self.find(name)) for name in self.plugins())

    def require(self, name: str) -> None:
        """Raise UsageError if there is none of this name; the hint names a similar one, or all."""
        if any(name == own for own, _, _ in self.own) or name in self.plugins():
            return
        known = self.names()
        near = difflib.get_close_matches(name, known, n=1) if len(known) > _SHORT_LIST else []
        hint = f"did you mean {near[0]!r}?" if near else f"choose from: {', '.join(known)}"
        raise UsageError(f"no {self.kind} named {name!r}", hint=hint)

    def find(self, name: str) -> T:
        """Import what is behind a name; raise UsageError for an unknown one, PluginError for an unusable plugin."""
        self.require(name)
        target = next((target for own, target, _ in self.own if own == name), None)
        if target is None:
            return self.of_plugin(self.plugins()[name])
        module, _, function = target.partition(":")
        found: Any = import_module(module)
        return getattr(found, function) if function else found  # type: ignore[no-any-return]


def unknown_options(function: Callable[..., object], options: Mapping[str, Any]) -> list[str]:
    """Return the options that a function does not take, in their order."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return []
    return [name for name in options if name not in parameters]


def require_options(what: str, function: Callable[..., object], options: Mapping[str, Any]) -> None:
    """Raise UsageError if a function, called ``what`` in the message, does not take one of these options."""
    for unknown in unknown_options(function, options):
        parameters = inspect.signature(function).parameters.values()
        known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY or p.default is not p.empty]
        hint = f"it takes {', '.join(known)}" if known else "leave it out"
        raise UsageError(f"{what} has no option {unknown!r}", hint=hint)


def warn(text: str) -> None:
    """Warn about a package that is not ours."""
    warnings.warn(text, PluginWarning, stacklevel=2)


@functools.cache
def _usable(kind: str, taken: frozenset[str], path: tuple[str, ...]) -> dict[str, Plugin]:
    """Return the entry points of a kind by name; warn once of each that is left out because its name is taken."""
    usable: dict[str, Plugin] = {}
    for plugin in _entry_points(path):
        if plugin.kind != kind:
            continue
        if plugin.name in taken:
            warn(f"{plugin} is left out: stashtrace has an {kind} of this name")
        elif plugin.name in usable:
            warn(f"{plugin} is left out: {usable[plugin.name].package} has an {kind} of this name")
        else:
            usable[plugin.name] = plugin
    return usable


@functools.cache
def _entry_points(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Return the entry points of all packages on the path, for any kind."""
    from importlib.metadata import distributions

    kinds = {group: kind for kind, group in GROUPS.items()}
    plugins: list[Plugin] = []
    seen: set[str] = set()
    for distribution in distributions(path=list(path)):
        package = "a package"
        try:
            # Most packages have nothing for us, and one file shows.
            text = distribution.read_text("entry_points.txt") or ""
            if not any(group in text for group in kinds):
                continue
            name = str(distribution.metadata["Name"])
            package = f"{name} {distribution.version}"
            entries = [entry for entry in distribution.entry_points if entry.group in kinds]
        except Exception as error:  # an installation may be damaged in any way
            warn(f"the entry points of {package} cannot be read and are left out: {one_line(error)}")
            continue
        if name not in seen:  # Python imports the first one on the path
            seen.add(name)
            plugins += [Plugin(kinds[entry.group], entry.name, package, entry) for entry in entries]
    return tuple(plugins)
