"""A collector is four places with one name, and its page has the five headings."""

from __future__ import annotations

import pytest
from source_tree import ROOT

from stashtrace import _native

HEADINGS = ["What it sees", "How it hooks", "Records", "Cost", "Blind spots"]
COLLECTORS = [c for c in _native.schema()["collectors"] if c["name"] != "core"]


@pytest.mark.parametrize("collector", COLLECTORS, ids=lambda c: c["name"])
def test_four_places(collector) -> None:
    name = collector["name"]
    probe = name.replace("torch_", "torch/", 1)  # probes of torch have a folder
    source = ROOT / "csrc/collectors" / name if collector["native"] else ROOT / f"stashtrace/probes/{probe}.py"
    places = [
        source,
        ROOT / f"stashtrace/collectors/{name}.py",
        ROOT / f"tests/collectors/test_{name}.py",
        ROOT / f"docs/collectors/{name}.md",
    ]
    assert [p.relative_to(ROOT) for p in places if not p.exists()] == []


@pytest.mark.parametrize("collector", COLLECTORS, ids=lambda c: c["name"])
def test_page_headings(collector) -> None:
    page = (ROOT / f"docs/collectors/{collector['name']}.md").read_text(encoding="utf-8")
    assert [line[3:].strip() for line in page.splitlines() if line.startswith("## ")] == HEADINGS


def test_every_record_is_decoded() -> None:
    import importlib

    decoded: set[str] = set()
    for collector in _native.schema()["collectors"]:
        module = importlib.import_module(f"stashtrace.collectors.{collector['name']}")
        decoded.update(module.RECORDS)
    declared = {r["name"] for r in _native.schema()["records"]}
    assert decoded == declared
