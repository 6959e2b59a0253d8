"""A file imports from floors below its own, never upward, never sideways between rooms."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys

import pytest
from source_tree import ROOT, imports, source_files

from stashtrace.importers.registry import IMPORTERS

# Floor of each package; see docs/internals/architecture.md, section 2.
FLOORS = {
    "cli": 8,
    "plugins": 8,
    "experiments": 7,
    "fleet": 7,
    "exporters": 6,
    "report": 6,
    "view": 6,
    "launch": 6,
    "replay": 5.8,
    "analysis": 5.5,
    "models": 5,
    "align": 4,
    "collectors": 3,
    "importers": 3,
    "format": 2,
    "store": 2,
    "probes": 2,
    "model": 1,
    "catalog": 0,
    "errors": 0,
    "log": 0,
    "run_facts": 0,
    "scrubbing": 0,
    "pseudonyms": 1,
    "entry_points": 1,
    "output_files": 1,
    "units": 0,
    "visible": 0,
    "whole_files": 0,
    "_native": 0,
}
# Rooms whose files stand side by side: they may use the named shared doors of their package only.
ROOMS = {
    "collectors": {"context", "registry", "core"},
    "importers": {"registry", "context", "source", "bounds", "collective_names", "io_calls"},
}
# Packages that may import floor 0 alone.
GROUND_ONLY = {"launch"}
# The guest runs inside the user's process: standard library, the recorder, itself.
GUEST = "probes"
HEAVY = {"torch", "cupy", "dask", "matplotlib", "pandas", "pyarrow", "perfetto", "viztracer", "wasmtime", "google"}


def package_of(dotted: str) -> str | None:
    parts = dotted.split(".")
    return parts[1] if parts[0] == "stashtrace" and len(parts) > 1 else None


PACKAGE_FILES = [p for p in source_files("stashtrace") if p.suffix == ".py"]


def test_every_package_has_a_floor() -> None:
    names = {p.relative_to(ROOT / "stashtrace").parts[0].removesuffix(".py") for p in PACKAGE_FILES}
    assert names - {"__init__", "__main__"} <= set(FLOORS), (
        "a new package needs a floor in FLOORS and in the architecture page"
    )


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path) -> None:
    inside = path.relative_to(ROOT / "stashtrace")
    own = inside.parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return  # the front door: lazy names of every floor
    for name, line, typing_only in imports(path):
        where = f"{path.relative_to(ROOT)}:{line} imports {name}"
        assert not name.startswith("."), f"{where}: relative import"
        target = package_of(name)
        if target is None:
            assert typing_only or name.split(".")[0] not in HEAVY or _is_lazy(path, line), (
                f"{where}: heavy package at import time"
            )
            if own == GUEST:
                root = name.split(".")[0]
                assert root in sys.stdlib_module_names or root == "stashtrace" or _is_lazy(path, line), (
                    f"{where}: guests use the standard library"
                )
            continue
        if target not in FLOORS:
            continue  # a public name of the package itself
        if own in GROUND_ONLY:
            assert target == own or FLOORS[target] == 0, f"{where}: {own} may use floor 0 only"
        if own == GUEST:
            assert target == own or FLOORS[target] == 0, f"{where}: guests may use floor 0 only"
        assert target == own or FLOORS[target] < FLOORS[own], (
            f"{where}: floor {FLOORS[own]} may not import floor {FLOORS[target]}"
        )
        if own in ROOMS and target == own:
            room = name.split(".")[2] if name.count(".") >= 2 else ""
            me = inside.parts[1].removesuffix(".py")
            shared = ROOMS[own] | {me, ""}
            # A room too large for one file has others whose names begin with its own.
            mine = room.startswith(f"{me}_") or (own == "importers" and room_of(room) == room_of(me))
            assert room in shared or mine or me in ("registry", "__init__"), f"{where}: rooms do not import each other"


def room_of(stem: str) -> str:
    """The importer that a file belongs to: the longest name of one with which its own begins."""
    names = [name for name, _, _ in IMPORTERS if stem == name or stem.startswith(f"{name}_")]
    return max(names, key=len, default=stem)


def _is_lazy(path, line: int) -> bool:
    """True if the import stands inside a function."""
    text = path.read_text(encoding="utf-8").splitlines()[line - 1]
    return text.startswith((" ", "\t"))
