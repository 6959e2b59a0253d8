"""Find what other packages add to stashtrace by their entry points, without importing them.

A package adds an analysis, an importer or an exporter by an entry point in the group of that kind. The registries look
here only when none of their own entries fits, so other users do not pay for it. A broken entry point is left out with
one line of warning; it is an error only when a user asks for it by name.
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
        Name by which users call it.
    package : str
        Name and version of the package.
    entry_point : importlib.metadata.EntryPoint
    """

    kind: str
    name: str
    package: str
    entry_point: EntryPoint

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of {self.package}"

    def load(self) -> Any:
        """Import the object that the entry point names.

        Raises
        ------
        PluginError
            If that fails for any reason.
        """
        try:
            return self.entry_point.load()
        except (Exception, SystemExit) as error:
            raise self.error(f"cannot be loaded from {self.entry_point.value!r}: {one_line(error)}") from error

    def error(self, problem: str) -> PluginError:
        """Error of this entry point; ``problem`` continues the sentence that begins with its name."""
        return PluginError(
            f"{self} {problem}", hint=f"--debug shows where; tell the authors of {self.package}, or uninstall it"
        )


def one_line(error: BaseException) -> str:
    """Type and first line of an error."""
    message = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def plugins(kind: str, taken: Collection[str]) -> dict[str, Plugin]:
    """Entry points of a kind by name, in the order in which Python finds their packages.

    Warns once about each that is left out because its name is taken, by stashtrace or by another package.

    Parameters
    ----------
    kind : str
        A key of ``GROUPS``.
    taken : collection of str
        Names of stashtrace's own, which cannot be replaced.
    """
    return _plugins(kind, frozenset(taken), tuple(sys.path))


@functools.cache
def _plugins(kind: str, taken: frozenset[str], path: tuple[str, ...]) -> dict[str, Plugin]:
    usable: dict[str, Plugin] = {}
    for plugin in _installed(path):
        if plugin.kind != kind:
            continue
        if plugin.name in taken:
            warn(f"{plugin} is left out: stashtrace has its own {kind} of this name")
        elif plugin.name in usable:
            warn(f"{plugin} is left out: {usable[plugin.name].package} has an {kind} of this name")
        else:
            usable[plugin.name] = plugin
    return usable


@functools.cache
def _installed(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Entry points of all packages on the path, for any kind."""
    from importlib.metadata import distributions

    kinds = {group: kind for kind, group in GROUPS.items()}
    plugins: list[Plugin] = []
    seen: set[str] = set()
    for distribution in distributions(path=list(path)):
        package = "a package"
        try:
            # Most packages have nothing for us, and one file tells.
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


def warn(text: str) -> None:
    """Warn about a package that is not ours."""
    warnings.warn(text, PluginWarning, stacklevel=2)
