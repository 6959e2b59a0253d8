"""Writes docs/internals/house.svg and the floors in architecture.md from the code, and prints the figures of the tree.

python scripts/docs/generate_house.py          # write picture and floors, print the figures
python scripts/docs/generate_house.py --check  # exit 1 if one of them is stale

The picture shows which folder imports which. A folder stands above all that it imports, and an arrow that follows from
two others is left out. It holds no counts, so it changes only when the structure does. The floors are those that
tests/architecture/test_layers.py enforces.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

from generated_files import first_sentence, with_block, write_or_compare

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "stashtrace"
NATIVE = ROOT / "csrc"
PICTURE = ROOT / "docs" / "internals" / "house.svg"
PAGE = ROOT / "docs" / "internals" / "architecture.md"
LAYERS = ROOT / "tests" / "architecture" / "test_layers.py"
COMMAND = "python scripts/docs/generate_house.py"

#: Modules at the top of the package that other packages or users enter by; they stand above everything.
DOORS = {"__init__", "__main__", "plugins"}
GROUND = "ground"
#: Most files of a folder, and the one folder that may have more (tests/architecture/test_sizes.py).
FOLDER_FILES = 15

#: Who imports whom: folder -> folders.
Edges = dict[str, set[str]]


@dataclass(frozen=True)
class Panel:
    """One part of the picture: its folders with a line about each, and what each imports."""

    title: str
    edges: Edges
    lines: Mapping[str, str]


# --- what the code says ---


def python_files() -> dict[str, Path]:
    """Every module of the package: dotted name -> file."""
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def module_imports(modules: Mapping[str, Path]) -> Edges:
    """Module -> modules of the package that it imports, be it inside a function or for types alone."""
    edges: Edges = {}
    for module, path in modules.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        targets = {name if name in modules else name.rpartition(".")[0] for name in names}
        edges[module] = (targets & modules.keys()) - {module, "stashtrace"}
    return edges


def folded(edges: Edges, folder_of: Callable[[str], str | None]) -> Edges:
    """Join the nodes of each folder; nodes without a folder are left out."""
    joined: Edges = {}
    for node, targets in edges.items():
        if (own := folder_of(node)) is not None:
            others = {folder_of(target) for target in targets}
            joined.setdefault(own, set()).update(name for name in others if name not in (None, own))
    return joined


def package_panel(edges: Edges, modules: Mapping[str, Path]) -> Panel:
    """The packages of stashtrace/. Its single files are the ground that all stand on; no arrow leads there."""

    def folder(module: str) -> str | None:
        name = (module.split(".") + [""])[1]
        if not name or name in DOORS:
            return None
        return name if (PACKAGE / name).is_dir() else GROUND

    folders = folded(edges, folder)
    single = sorted({m.split(".")[1] for m in modules if folder(m) == GROUND})
    lines = {name: first_line(PACKAGE / name / "__init__.py") for name in folders if name != GROUND}
    above = {name: targets - {GROUND} for name, targets in folders.items() if name != GROUND}
    return Panel("stashtrace/ (all may use " + ", ".join(single) + ")", above, lines)


def analysis_panel(edges: Edges) -> Panel:
    """The questions of stashtrace/analysis/."""

    def folder(module: str) -> str | None:
        parts = module.split(".")
        return parts[2] if parts[1:2] == ["analysis"] and len(parts) > 2 else None

    folders = folded(edges, folder)
    base = PACKAGE / "analysis"
    lines = {
        name: first_line(base / name / "__init__.py" if (base / name).is_dir() else base / f"{name}.py")
        for name in folders
    }
    return Panel("stashtrace/analysis/", folders, lines)


def native_panel() -> Panel:
    """The folders of csrc/, by their includes. Folders that include each other are one box."""
    edges: Edges = defaultdict(set)
    for path in sorted(NATIVE.rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        for included in re.findall(r'^\s*#include "([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE):
            target = next((p for p in (NATIVE / included, path.parent / included) if p.exists()), None)
            if target is not None:
                edges[_folder(path)].add(_folder(target))
        edges[_folder(path)].discard(_folder(path))
    one_box = {folder: ", ".join(circle) for circle in circles(edges) for folder in circle}
    joined = folded(dict(edges), lambda folder: one_box.get(folder, folder))
    return Panel("csrc/", joined, {})


def _folder(path: Path) -> str:
    parts = path.relative_to(NATIVE).parts
    return f"collectors/{parts[1]}" if parts[0] == "collectors" and len(parts) > 2 else parts[0]


def first_line(path: Path) -> str:
    """First sentence of a module's docstring as plain text."""
    return first_sentence(path).replace("`", "")


def circles(edges: Edges) -> list[list[str]]:
    """Return groups of nodes that reach each other, each sorted by name."""
    reach = reachable(edges)
    groups = {tuple(sorted(b for b in reach[a] if a in reach.get(b, ()))) for a in edges if a in reach[a]}
    return sorted(list(group) for group in groups)


def reachable(edges: Edges) -> Edges:
    """Node -> everything that it reaches, itself only if it is in a circle."""
    reach: Edges = {}
    for start in edges:
        seen: set[str] = set()
        todo = list(edges[start])
        while todo:
            if (node := todo.pop()) not in seen:
                seen.add(node)
                todo += edges.get(node, ())
        reach[start] = seen
    return reach


def needed(edges: Edges) -> Edges:
    """Leave out each arrow that follows from two others. The edges have no circle."""
    reach = reachable(edges)
    return {
        node: {t for t in targets if not any(t in reach.get(other, ()) for other in targets - {t})}
        for node, targets in edges.items()
    }


def floors(edges: Edges) -> dict[str, int]:
    """Node -> one more than the highest floor of what it imports. The edges have no circle."""
    levels: dict[str, int] = {}

    def level(node: str) -> int:
        if node not in levels:
            levels[node] = 1 + max(map(level, edges.get(node, ())), default=-1)
        return levels[node]

    for node in edges:
        level(node)
    return levels


# --- the figures ---


def figures(modules: Mapping[str, Path], edges: Edges) -> list[tuple[str, str]]:
    """What is measured of the tree, as pairs of a name and a value."""
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules.values()}
    longest = max(sizes, key=lambda path: sizes[path])
    lab = sum(size for path, size in sizes.items() if path.is_relative_to(PACKAGE / "lab"))
    ignored = (".pyc", ".so", ".pyi")
    files = Counter(p.parent for p in PACKAGE.rglob("*") if p.is_file() and p.suffix not in ignored)
    full = sorted(str(p.relative_to(ROOT)) for p, count in files.items() if count > FOLDER_FILES)
    analysis = analysis_panel(edges).edges
    folders = {name for name in analysis if (PACKAGE / "analysis" / name).is_dir()}
    importers: dict[str, set[str]] = defaultdict(set)
    for module, targets in edges.items():
        for target in targets:
            importers[target].add(module)
    alone = [
        module
        for module, users in importers.items()
        if len(users) == 1 and next(iter(users)).rpartition(".")[0] == module.rpartition(".")[0]
    ]
    entries = {p.name for p in (PACKAGE / "analysis").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    return [
        ("modules without __init__", f"{sum(p.name != '__init__.py' for p in sizes):,}"),
        ("lines of stashtrace/", f"{sum(sizes.values()):,}"),
        ("lines without lab/", f"{sum(sizes.values()) - lab:,}"),
        ("longest file", f"{longest.relative_to(ROOT)}, {sizes[longest]} lines"),
        (f"folders of more than {FOLDER_FILES} files", ", ".join(full) or "none"),
        ("analysis/: entries", str(len(entries))),
        ("analysis/: floors", str(1 + max(floors(analysis).values()))),
        ("analysis/: arrows between folders", str(sum(len(analysis[name] & folders) for name in folders))),
        ("circles of files", str(len(circles(edges)))),
        ("modules with one importer, a sibling", str(len(alone))),
    ]


# --- the floors ---


def page() -> str:
    """Return the text of the page with the floors of today."""
    text = with_block(PAGE.read_text(encoding="utf-8"), "floors", floor_table("FLOORS", PACKAGE))
    return with_block(text, "questions", floor_table("QUESTIONS", PACKAGE / "analysis"))


def floor_table(name: str, base: Path) -> str:
    """Return a table of what stands on which floor: a row for each folder, one for the single files of a floor."""
    by_floor: dict[float, list[str]] = defaultdict(list)
    for entry, floor in declared_floors(name).items():
        by_floor[floor].append(entry)
    lines = ["| floor | what | what it is for |", "|---|---|---|"]
    for floor, entries in sorted(by_floor.items(), reverse=True):
        for entry in sorted(e for e in entries if (base / e).is_dir()):
            inner = [f"`{p.parent.name}/`" for p in sorted((base / entry).glob("*/__init__.py"))]
            holds = f"; has {', '.join(inner)}" if inner and entry != "analysis" else ""
            lines.append(f"| {floor:g} | `{entry}/` | {first_sentence(base / entry / '__init__.py')}{holds} |")
        if single := sorted(e for e in entries if not (base / e).is_dir()):
            said = first_sentence(base / f"{single[0]}.py") if len(single) == 1 else "single files"
            lines.append(f"| {floor:g} | {', '.join(f'`{e}`' for e in single)} | {said} |")
    return "\n".join(lines)


def declared_floors(name: str) -> dict[str, float]:
    """Return the floors that the test of the layers enforces."""
    for node in ast.parse(LAYERS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            found: dict[str, float] = ast.literal_eval(node.value)
            return found
    raise LookupError(name)


# --- the picture ---

BOX_WIDTH, BOX_HEIGHT, PLAIN_HEIGHT = 172, 70, 30
GAP, ROW_GAP, MARGIN, TITLE = 18, 44, 24, 34
DOC_COLUMNS, DOC_LINES = 32, 3
NAME_WIDTH = 8.6  # of one letter
PASSING_WIDTH = 14.0

STYLE = """
  svg { background: #ffffff; font-family: system-ui, sans-serif; }
  .title { font-size: 14px; font-weight: 600; fill: #1f2328; }
  .name { font-size: 13px; font-weight: 600; fill: #1f2328; text-anchor: middle; }
  .doc { font-size: 9.5px; fill: #59636e; text-anchor: middle; }
  .box { fill: #f6f8fa; stroke: #8c959f; }
  .arrow { fill: none; stroke: #6e7781; stroke-width: 1.1; opacity: .75; }
  .head { fill: #6e7781; }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117; } .title, .name { fill: #e6edf3; } .doc { fill: #9198a1; }
    .box { fill: #161b22; stroke: #6e7681; } .arrow { stroke: #8b949e; } .head { fill: #8b949e; }
  }
"""


def picture(columns: Iterable[Iterable[Panel]]) -> str:
    """The picture as the text of an SVG file: columns of panels side by side."""
    parts: list[str] = []
    left = height = 0.0
    for panels in columns:
        top = width = 0.0
        for panel in panels:
            shapes, panel_width, top = draw_panel(panel, left, top)
            parts += shapes
            width = max(width, panel_width)
        left, height = left + width, max(height, top)
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Which folder imports which"',
            f' viewBox="0 0 {left:.0f} {height:.0f}" width="{left:.0f}">',
            f"<!-- {COMMAND} -->",
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"',
            ' orient="auto"><path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>',
            *parts,
            "</svg>",
            "",
        ]
    )


def draw_panel(panel: Panel, left: float, top: float) -> tuple[list[str], float, float]:
    """Shapes of one panel with its corner at ``left`` and ``top``, its width, and the height where it ends."""
    edges = needed(panel.edges)
    rows, chains = laid_out(edges, floors(panel.edges))
    height = BOX_HEIGHT if panel.lines else PLAIN_HEIGHT
    widths = [sum(_width(node) + GAP for node in row) - GAP for row in rows]
    centre: dict[str, tuple[float, float]] = {}
    y = top + TITLE + MARGIN + height / 2
    for row, row_width in zip(reversed(rows), reversed(widths), strict=True):  # the highest floor first
        x = left + MARGIN + (max(widths) - row_width) / 2
        for node in row:
            centre[node] = (x + _width(node) / 2, y)
            x += _width(node) + GAP
        y += height + ROW_GAP
    shapes = [f'<text class="title" x="{left + MARGIN:.0f}" y="{top + TITLE:.0f}">{escape(panel.title)}</text>']
    shapes += [_arrow([centre[node] for node in chain], height) for chain in chains]
    for node in panel.edges:
        shapes += _box(node, panel.lines.get(node, ""), *centre[node], height)
    return shapes, max(widths) + 2 * MARGIN, y - height / 2 - ROW_GAP + MARGIN


def laid_out(edges: Edges, level: Mapping[str, int]) -> tuple[list[list[str]], list[list[str]]]:
    """Order the nodes of each floor so that few arrows cross.

    Where an arrow passes a floor it has a place there (a name that begins with a space).

    Returns
    -------
    rows : list of list of str
        Nodes and passing places of each floor, lowest floor first.
    chains : list of list of str
        Each arrow from its importer downward, through the places that it passes.
    """
    rows: list[list[str]] = [[] for _ in range(1 + max(level.values()))]
    for node in sorted(level):
        rows[level[node]].append(node)
    chains = []
    for node, target in sorted((node, target) for node, targets in edges.items() for target in targets):
        passed = [f" {node}>{target}@{floor}" for floor in range(level[node] - 1, level[target], -1)]
        for name, floor in zip(passed, range(level[node] - 1, level[target], -1), strict=True):
            rows[floor].append(name)
        chains.append([node, *passed, target])
    beside: dict[str, list[str]] = defaultdict(list)
    for chain in chains:
        for upper, lower in pairwise(chain):
            beside[upper].append(lower)
            beside[lower].append(upper)
    best, fewest = [list(row) for row in rows], crossings(rows, chains)
    for sweep in range(40):
        numbers = range(len(rows)) if sweep % 2 else range(len(rows) - 1, -1, -1)
        for number in numbers:
            place = {name: (k + 0.5) / len(row) for row in rows for k, name in enumerate(row)}
            step = -1 if sweep % 2 else 1
            around = set(rows[number + step]) if 0 <= number + step < len(rows) else set()

            def middle(name: str, place: dict[str, float] = place, around: set[str] = around) -> tuple[float, str]:
                near = [place[other] for other in beside[name] if other in around]
                return (sum(near) / len(near) if near else place[name], name)

            rows[number].sort(key=middle)
        if (now := crossings(rows, chains)) < fewest:
            best, fewest = [list(row) for row in rows], now
    return best, chains


def crossings(rows: list[list[str]], chains: list[list[str]]) -> int:
    """How many pairs of arrows cross between two floors."""
    place = {name: k for row in rows for k, name in enumerate(row)}
    floor = {name: number for number, row in enumerate(rows) for name in row}
    between: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for chain in chains:
        for upper, lower in pairwise(chain):
            between[floor[upper]].append((place[upper], place[lower]))
    return sum(
        (a[0] - b[0]) * (a[1] - b[1]) < 0 for pairs in between.values() for k, a in enumerate(pairs) for b in pairs[:k]
    )


def _width(node: str) -> float:
    return PASSING_WIDTH if node.startswith(" ") else max(BOX_WIDTH, NAME_WIDTH * len(node))


def _box(name: str, doc: str, x: float, y: float, height: float) -> Iterator[str]:
    width = _width(name)
    corner = f'x="{x - width / 2:.0f}" y="{y - height / 2:.0f}"'
    yield f'<rect class="box" {corner} width="{width:.0f}" height="{height}" rx="5"/>'
    lines = textwrap.wrap(doc, DOC_COLUMNS, max_lines=DOC_LINES, placeholder=" …")
    first = y + 4 - 6 * len(lines)
    yield f'<text class="name" x="{x:.0f}" y="{first:.0f}">{escape(name)}</text>'
    for number, line in enumerate(lines):
        yield f'<text class="doc" x="{x:.0f}" y="{first + 14 + 12 * number:.0f}">{escape(line)}</text>'


def _arrow(points: list[tuple[float, float]], height: float) -> str:
    """A curve from below the first point to above the last, straight down through the places that it passes."""
    (x, y), *rest = points
    y += height / 2
    path = [f"M{x:.0f},{y:.0f}"]
    for number, (next_x, next_y) in enumerate(rest):
        above, below = next_y - height / 2, next_y + height / 2
        half = (y + above) / 2
        path.append(f"C{x:.0f},{half:.0f} {next_x:.0f},{half:.0f} {next_x:.0f},{above:.0f}")
        if number < len(rest) - 1:
            path.append(f"L{next_x:.0f},{below:.0f}")
        x, y = next_x, below
    return f'<path class="arrow" marker-end="url(#head)" d="{" ".join(path)}"/>'


def drawn() -> str:
    """Return the text of the picture."""
    modules = python_files()
    edges = module_imports(modules)
    return picture([(package_panel(edges, modules), native_panel()), (analysis_panel(edges),)])


#: What is written -> its text.
FILES = {PICTURE: drawn, PAGE: page}


if __name__ == "__main__":
    if "--check" not in sys.argv:
        for title, value in figures(python_files(), module_imports(python_files())):
            print(f"{title:38} {value}")
    sys.exit(write_or_compare(FILES, sys.argv[1:]))
