"""Adds a collector to a copy of the tree, as ``CONTRIBUTING.md`` says, and uses it: one file is edited.

New files are what is added. A collector is the addition that reaches furthest: C++, generated records, Python and docs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from source_tree import ROOT, tracked_files

#: What an addition needs to be used and checked; the rest of the tree takes no part in it.
_COPIED = ("stashtrace", "csrc", "docs", "scripts/docs", "tests/architecture", "CONTRIBUTING.md", "pyproject.toml")
#: What generators write is not an edit.
_GENERATED = {
    *("docs/reference/cli.md", "docs/reference/format.md", "docs/reference/tables.md", "docs/internals/modules.md"),
}


class Tree:
    """A copy of the tree that knows what was done to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for path in tracked_files():
            inside = path.relative_to(ROOT)
            if inside.as_posix().startswith(_COPIED) or inside.parent == Path("tests/support"):
                (root / inside).parent.mkdir(parents=True, exist_ok=True)
                if path.is_file():
                    shutil.copy(path, root / inside)
        for built in (ROOT / "stashtrace").glob("*.so"):
            shutil.copy(built, root / "stashtrace")
        self._before = self._contents()

    def _contents(self) -> dict[str, bytes]:
        files = (p for p in self.root.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        return {p.relative_to(self.root).as_posix(): p.read_bytes() for p in files}

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        assert not file.exists()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).lstrip(), encoding="utf-8")

    def edited(self) -> set[str]:
        """Files that were there and are not as they were, but for generated ones."""
        now = self._contents()
        return {path for path, content in self._before.items() if now.get(path) != content} - _GENERATED

    def python(self, *words: object) -> str:
        """Stdout of Python with the copy's package."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("STASHTRACE_") and k != "LD_PRELOAD"}
        environment = {**kept, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *map(str, words)], cwd=self.root, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree")


_FANS = """
COLLECTOR(fans, 20, native, "Fans of the machine")
#define FAN_SPEED_FIELDS(FIELD)                          \\
  FIELD(std::uint64_t, ticks, "when it was read")        \\
  FIELD(double, speed_per_s, "turns per second")         \\
  FIELD(std::uint32_t, fan_index, "which fan")           \\
  FIELD(std::uint32_t, reserved_padding, "0")
RECORD(fans, FanSpeed, fan_speed, 0x7f00, 1, 4096, "One reading of one fan", FAN_SPEED_FIELDS)
"""


def add_collector(tree: Tree) -> None:
    """``fans``, made from the template as ``CONTRIBUTING.md`` says."""
    template = (ROOT / "csrc/collectors/template_collector/template_collector.cpp").read_text(encoding="utf-8")
    emitted = "emit(schema::Counter{now, bytes, intern("
    assert emitted in template
    room = re.sub(r"emit\(schema::Counter.*?\);", "emit(schema::FanSpeed{now, bytes, 0, 0});", template)
    room = room.replace("template_collector", "fans").replace("TemplateCollector", "Fans")
    tree.write("csrc/collectors/fans/fans.cpp", room)
    tree.write(
        "stashtrace/collectors/fans.py",
        '''
        """Decodes readings of fans into counters."""

        from __future__ import annotations

        import numpy as np

        from stashtrace.collectors.decode_context import DecodeContext
        from stashtrace.schema.trace import EventTables, RawProcess

        RECORDS = ("fan_speed",)
        TABLES = ("counters",)


        def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
            """Fill ``counters``."""
            records = raw.records.get("fan_speed")
            if records is None:
                return context.tables()
            fans, which = np.unique(records.rows["fan_index"], return_inverse=True)
            tracks = np.array([context.counter_track(f"fan.{fan}", "per_s") for fan in fans.tolist()])
            ts_ns = context.to_ns(records.rows["ticks"])
            values = records.rows["speed_per_s"]
            return context.tables(counters={"ts_ns": ts_ns, "track_id": tracks[which], "value": values})
        ''',
    )
    tree.write("tests/collectors/test_fans.py", '"""Fans are decoded."""\n')
    headings = ("What it sees", "How it hooks", "Records", "Cost", "Blind spots")
    tree.write("docs/collectors/fans.md", "# fans\n" + "".join(f"\n## {heading}\n\nFans.\n" for heading in headings))
    with (tree.root / "csrc/schema/records.def").open("a", encoding="utf-8") as file:
        file.write(_FANS)


#: Prints what the compiled schema says of the collector: its code, its record, a line for each field.
_DUMP = r"""
#include <iostream>
#include "schema/schema.h"
int main() {
  using namespace stashtrace::schema;
  const char* types[] = {"", "u16", "i32", "u32", "i64", "u64", "f64", "text56"};
  for (const auto& c : kCollectors)
    if (c.name == "fans") std::cout << c.code << ' ' << c.native << '\n';
  for (const auto& r : kRecords)
    if (r.name == "fan_speed") {
      std::cout << r.id << ' ' << r.version << ' ' << r.row_bytes << ' ' << r.ring_bytes << '\n';
      for (std::size_t i = 0; i < r.field_count; ++i) {
        const FieldDesc& field = r.fields[i];
        std::cout << field.name << ' ' << types[static_cast<int>(field.type)] << ' ' << field.offset_bytes << ' '
                  << field.size_bytes << '\n';
      }
    }
}
"""


def additions_to_the_schema(dumped: str) -> str:
    """What ``_native.schema()`` will have more, as JSON."""
    collector, record, *fields = (line.split() for line in dumped.splitlines())
    keys = ("id", "version", "row_bytes", "ring_bytes")
    return json.dumps(
        {
            "collector": {"name": "fans", "code": int(collector[0]), "native": collector[1] == "1", "doc": ""},
            "record": {
                **dict(zip(keys, map(int, record), strict=True)),
                "name": "fan_speed",
                "collector": "fans",
                "doc": "",
                "fields": [
                    {"name": name, "type": kind, "offset": int(offset), "size": int(size), "doc": ""}
                    for name, kind, offset, size in fields
                ],
            },
        }
    )


#: Stands in for an extension that was built with the new schema; everything behind it belongs to the copy.
_RECORD_AND_READ = """
import json, sys
from stashtrace import _native
built, added = _native.schema(), json.loads(sys.argv[1])
built["collectors"].append(added["collector"])
built["records"].append(added["record"])
_native.schema = lambda: built
sys.path.insert(0, "tests/support")
import stashtrace
from stash_files import StashWriter, ms
from stashtrace.record.options import default_collectors
file = StashWriter("run", env={"RANK": "0"})
file.sync(0, 100)
rows = [file.row("fan_speed", ticks=ms(at), speed_per_s=20.5 + at, fan_index=at % 2) for at in range(4)]
file.add("fan_speed", rows)
file.save()
trace = stashtrace.load("run")
names = [trace.text(code) for code in trace.tracks["name_code"][trace.counters["track_id"]]]
print(json.dumps([default_collectors(), names, trace.counters["value"].tolist()]))
"""


def test_a_collector_edits_one_file(tree: Tree) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    add_collector(tree)
    assert tree.edited() == {"csrc/schema/records.def"}
    (tree.root / "dump.cpp").write_text(_DUMP, encoding="utf-8")
    compile_it = [compiler, "-std=c++20", "-Icsrc"]
    for words in (["-fsyntax-only", "csrc/collectors/fans/fans.cpp"], ["dump.cpp", "-o", "dump"]):
        done = subprocess.run([*compile_it, *words], cwd=tree.root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    dumped = subprocess.run([tree.root / "dump"], capture_output=True, text=True, check=True).stdout
    known, names, values = json.loads(tree.python("-c", _RECORD_AND_READ, additions_to_the_schema(dumped)))
    # Behind the other native collectors, in front of the probes: a run turns it on.
    assert known[known.index("fans") - 1 : known.index("fans") + 2] == ["python_stacks", "fans", "torch_dataloader"]
    assert sorted(zip(names, values, strict=True)) == [
        ("fan.0", 20.5),
        ("fan.0", 22.5),
        ("fan.1", 21.5),
        ("fan.1", 23.5),
    ]


@pytest.mark.thorough
def test_what_was_added_keeps_the_rules(tree: Tree) -> None:
    add_collector(tree)
    tree.python("-m", "ruff", "check", "--no-cache", "--quiet", "stashtrace")
    tree.python("-m", "ruff", "format", "--no-cache", "--check", "--quiet", "stashtrace")
    rules = "floor or imports_go_down"
    answer = tree.python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/architecture/test_layers.py", "-k", rules
    )
    assert re.search(r"\b[3-9] passed", answer.splitlines()[-1]), answer
