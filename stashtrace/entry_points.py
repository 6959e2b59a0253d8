"""What other packages add to stashtrace: their entry points, found without importing them.

A package adds an analysis, an importer or an exporter by an entry point in the group of that kind. The registries ask
here only when none of their own will do, so nobody without such packages pays for them. A broken one costs itself:
it is left out with one line of warning, and is an error only when somebody asks for it by name.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stashtrace.errors import PluginError, PluginWarning

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: What can be added -> group of its entry points.
GROUPS = {"analysis": "stashtrace.analyses", "importer": "stashtrace.importers", "exporter": "stashtrace.exporters"}


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point of another package.

    Attributes
    ----------
    kind : str
        A key of ``GROUPS``.
    name : str
        Under which it is called.
    package : str
        Name and version of the package that brings it.
    entry_point : importlib.metadata.EntryPoint
    """

    kind: str
    name: str
    package: str
    entry_point: EntryPoint

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of {self.package}"

    def load(self) -> Any:
        """Import what the entry point names.

        Raises
        ------
        PluginError
            If that fails, whatever the reason.
        """
        try:
            return self.entry_point.load()
        except (Exception, SystemExit) as error:
            raise self.error(f"cannot be loaded from {self.entry_point.value!r}: {one_line(error)}") from error

    def error(self, what: str) -> PluginError:
        """The error that says what is wrong with it."""
        return PluginError(
            f"{self} {what}", hint=f"--debug shows where; tell the authors of {self.package}, or uninstall it"
        )


def one_line(error: BaseException) -> str:
    """Type and first line of an error."""
    said = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def plugins(kind: str, taken: Collection[str]) -> dict[str, Plugin]:
    """Entry points of a kind by name, in the order in which Python finds their packages.

    Warns once of those that cannot be used: names that are taken, and names that two packages give.

    Parameters
    ----------
    kind : str
        A key of ``GROUPS``.
    taken : collection of str
        Names of our own, which nobody may replace.
    """
    return _plugins(kind, frozenset(taken), tuple(sys.path))


@functools.cache
def _plugins(kind: str, taken: frozenset[str], path: tuple[str, ...]) -> dict[str, Plugin]:
    found: dict[str, Plugin] = {}
    for plugin in _installed(path):
        if plugin.kind != kind:
            continue
        if plugin.name in taken:
            warn(f"{plugin} is left out: stashtrace has its own {kind} of this name")
        elif plugin.name in found:
            warn(f"{plugin} is left out: {found[plugin.name].package} has an {kind} of this name")
        else:
            found[plugin.name] = plugin
    return found


@functools.cache
def _installed(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Everything that packages on the path add."""
    from importlib.metadata import distributions

    kinds = {group: kind for kind, group in GROUPS.items()}
    found: list[Plugin] = []
    seen: set[str] = set()
    for distribution in distributions(path=list(path)):
        package = "a package"
        try:
            # Most packages have nothing for us, and one file settles it.
            text = distribution.read_text("entry_points.txt") or ""
            if not any(group in text for group in kinds):
                continue
            name = str(distribution.metadata["Name"])
            package = f"{name} {distribution.version}"
            entries = [entry for entry in distribution.entry_points if entry.group in kinds]
        except Exception as error:  # whatever an installation of somebody else's looks like
            warn(f"the entry points of {package} cannot be read and are left out: {one_line(error)}")
            continue
        if name not in seen:  # else found again further down the path, where Python would not import it from
            seen.add(name)
            found += [Plugin(kinds[entry.group], entry.name, package, entry) for entry in entries]
    return tuple(found)


def warn(text: str) -> None:
    """Warn about a package that is not ours."""
    warnings.warn(text, PluginWarning, stacklevel=2)
