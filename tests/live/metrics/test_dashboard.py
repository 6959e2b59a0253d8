"""The dashboard: what Grafana needs to import it, and queries of series that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stashtrace.cli import main
from stashtrace.live.metrics.series import SERIES
from stashtrace.schema.stall_kinds import KIND_NAMES

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/metrics.md"


@pytest.fixture
def board(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["metrics", "--dashboard"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_what_an_import_needs(board: dict[str, Any]) -> None:
    assert board["id"] is None, "an id comes from the importing Grafana"
    assert board["uid"]
    assert board["title"]
    assert board["schemaVersion"] >= 36
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    needed = {one["id"] for one in board["__requires"] if one["type"] == "panel"}
    assert {panel["type"] for panel in board["panels"]} == needed
    for panel in board["panels"]:
        assert panel["title"]
        assert panel["description"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0


def test_panels_lie_on_the_grid_next_to_each_other(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_one_variable_names_the_data_source(board: dict[str, Any]) -> None:
    variables = board["templating"]["list"]
    assert [one["name"] for one in variables if one["type"] == "datasource"] == ["datasource"]
    queries = [one for one in variables if one["type"] == "query"]
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    for one in [*queries, *board["panels"], *targets]:
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_each_query_uses_series_and_labels_that_exist(board: dict[str, Any]) -> None:
    known: dict[str, set[str]] = {}
    for one in SERIES:
        endings = ("_bucket", "_sum", "_count") if one.type == "histogram" else ("",)
        for ending in endings:
            known[one.full_name + ending] = {*one.labels, "instance", *(["le"] if ending == "_bucket" else [])}
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    used = set()
    for query in queries:
        for name, _, matchers in re.findall(r"(stashtrace_\w+)(\{([^}]*)\})?", query):
            used.add(name)
            assert name in known, query
            assert set(re.findall(r"(\w+)\s*[=!]~?\s*\"", matchers)) <= known[name], query
        for kind in re.findall(r'kind!?="(\w+)"', query):
            assert kind in KIND_NAMES
        variables = set(re.findall(r"\$\{?(\w+)", query)) - {"__rate_interval"}
        assert variables <= {one["name"] for one in board["templating"]["list"]}
        assert query.count("(") == query.count(")")
    missing = {one.name for one in SERIES} - {one.name for one in SERIES for name in used if name.startswith(one.name)}
    assert missing == set(), "series that no panel shows"


def test_series_as_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == [one.full_name for one in SERIES]
    assert main(["metrics"]) == 0
    assert "stashtrace_stall_seconds_total{rank,kind}  counter\n" in capsys.readouterr().out


def test_the_guide_has_each_series() -> None:
    rows = re.findall(r"^\| `(stashtrace_\w+)(?:\{([\w,]+)\})?` \| (\w+) \|", GUIDE.read_text(encoding="utf-8"), re.M)
    assert rows == [(one.full_name, ",".join(one.labels), one.type) for one in SERIES]
