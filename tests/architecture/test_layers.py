"""A file imports from floors below it, never upward, never sideways between siblings, and never in a circle."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from source_tree import ROOT, imports, short, source_files

import stashtrace

# Floor of each package. scripts/docs/generate_house.py writes section 2 of docs/internals/architecture.md from it.
FLOORS = {
    "cli": 10,
    "lab": 9,
    "trackers": 9,
    "plugins": 8,
    "sql": 8,
    "report": 8,
    "timeline": 8,
    "exporters": 7,
    "fleet": 7,
    "replay": 7,
    "live": 7,
    "summary": 6,
    "analysis": 5,
    "loading": 4,
    "calibration": 3,
    "collectors": 3,
    "importers": 3,
    "callbacks": 3,
    "format": 2,
    "store": 2,
    "probes": 2,
    "record": 2,
    "schema": 1,
    "registry": 1,
    "files": 0,
    "scrubbing": 0,
    "text": -0.5,
    "errors": -1,
    "_native": -1,
}
# Floors inside analysis/: one folder per question. Those of one floor do not know each other.
QUESTIONS = {
    "findings": 6,
    "graph": 6,
    "io": 5,
    "lines": 5,
    "stragglers": 5,
    "compare": 4,
    "links": 4,
    "stalls": 3,
    "collectives": 2,
    "devices": 2,
    "steps": 1,
    "intervals": 0,
    "registry": 0,
}
# Packages whose files stand side by side: they may use the named shared doors of their package only.
SIBLINGS = {
    "collectors": {"decode_context", "core"},
    "importers": {
        *("registry", "import_context", "source", "import_limits", "collective_names"),
    },
}
# Packages that may import floor 0 alone.
GROUND_ONLY = {"record"}
# The guest runs inside the user's process: standard library, the recorder, itself.
GUEST = "probes"
HEAVY = {
    *("torch", "cupy", "dask", "matplotlib", "pandas", "pyarrow", "duckdb"),
    *("perfetto", "viztracer", "wasmtime", "google", "pynvml", "prometheus_client", "opentelemetry", "rich"),
}
PACKAGE = ROOT / "stashtrace"


def package_of(dotted: str) -> str | None:
    parts = dotted.split(".")
    return parts[1] if parts[0] == "stashtrace" and len(parts) > 1 else None


PACKAGE_FILES = [p for p in source_files("stashtrace") if p.suffix == ".py"]


def own_package(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_package_has_a_floor() -> None:
    names = {own_package(p) for p in PACKAGE_FILES}
    assert names - {"__init__", "__main__"} <= set(FLOORS), "a new package needs a floor in FLOORS"
    assert set(FLOORS) - names <= {"_native"}, "no package is behind a floor"


def test_no_package_stands_in_the_place_of_a_public_name() -> None:
    """Importing a package sets the attribute of its name: ``stashtrace.load`` would be a module then."""
    assert {own_package(p) for p in PACKAGE_FILES if p.parent != PACKAGE} & set(stashtrace.__all__) == set()


def test_every_question_has_a_floor() -> None:
    files = [p.relative_to(PACKAGE / "analysis") for p in PACKAGE_FILES if own_package(p) == "analysis"]
    assert {p.parts[0].removesuffix(".py") for p in files} - {"__init__"} == set(QUESTIONS)


def test_imports_go_down() -> None:
    assert len(PACKAGE_FILES) > 400
    for path in PACKAGE_FILES:
        check_imports_go_down(path)


def check_imports_go_down(path: Path) -> None:
    inside = path.relative_to(PACKAGE)
    own = own_package(path)
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
        if own == GUEST:
            assert target == own, (
                f"{where}: the job's Python may have no other part of this package, or another version"
            )
            continue
        if target not in FLOORS:
            continue  # a public name of the package itself
        if own in GROUND_ONLY:
            assert target == own or FLOORS[target] <= 0, f"{where}: {own} may use floor 0 only"
        assert target == own or FLOORS[target] < FLOORS[own], (
            f"{where}: floor {FLOORS[own]} may not import floor {FLOORS[target]}"
        )
        if own in SIBLINGS and target == own:
            sibling = name.split(".")[2] if name.count(".") >= 2 else ""
            me = inside.parts[1].removesuffix(".py")
            # One too large for one file is a folder.
            assert sibling in SIBLINGS[own] | {me, ""} or me in ("registry", "__init__"), (
                f"{where}: collectors and importers do not import each other"
            )
        if own == target == "analysis":
            me, other = inside.parts[1].removesuffix(".py"), name.split(".")[2]
            assert me == other or QUESTIONS[other] < QUESTIONS[me], (
                f"{where}: {me}/ on floor {QUESTIONS[me]} may not import {other}/ on floor {QUESTIONS[other]}"
            )


GUEST_FILES = [path for path in PACKAGE_FILES if own_package(path) == GUEST]
#: What loads the recorder's library into a job's Python; one for those that are too old for the other.
DOORS = {"probes/native.py", "probes/older_python.py"}


def test_probes_reach_the_recorder_by_one_door() -> None:
    """An extension is built for one Python, and ``import stashtrace...`` would load the package of the job."""
    doors = set()
    for path in GUEST_FILES:
        text = path.read_text(encoding="utf-8")
        statements = re.findall(r"^\s*(?:import|from) +(stashtrace\b[\w.]*)(?: import (.*))?", text, re.M)
        others = [name for name, what in statements if not what or not name.startswith("stashtrace.probes")]
        assert others == [], short(path)
        assert "_native" not in text or str(path.relative_to(PACKAGE)) == "probes/native.py", short(path)
        if any(name.split(".")[0] in ("ctypes", "_ctypes", "cffi") for name, _, _ in imports(path)):
            doors.add(str(path.relative_to(PACKAGE)))
    assert doors == DOORS


def test_only_commands_name_the_lab() -> None:
    """Nothing below imports ``lab``, nor names a module of it for later."""
    found = [
        str(p.relative_to(ROOT))
        for p in PACKAGE_FILES
        if own_package(p) not in {"cli", "lab"} and re.search(r"stashtrace\.lab\b", p.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_no_circles() -> None:
    """No file needs itself by way of others, be it inside a function or for types alone."""
    modules = {_dotted(p): p for p in PACKAGE_FILES if own_package(p) != "__init__"}
    needs = {
        module: {
            name if name in modules else name.rpartition(".")[0]
            for name, _, _ in imports(path)
            if {name, name.rpartition(".")[0]} & set(modules)
        }
        for module, path in modules.items()
    }
    while leaves := {module for module, others in needs.items() if not others}:
        needs = {module: others - leaves for module, others in needs.items() if module not in leaves}
    assert sorted(needs) == [], "these are in a circle, or need one that is"


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_lazy(path: Path, line: int) -> bool:
    """True if the import stands inside a function."""
    text = path.read_text(encoding="utf-8").splitlines()[line - 1]
    return text.startswith((" ", "\t"))
