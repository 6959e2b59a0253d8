"""A real run as a real Prometheus sees it, and the dashboard's queries answered by it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from example_job import ENVIRONMENT, ROOT
from ports import free_port

pytest.importorskip("prometheus_client")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus is installed"),
]
DASHBOARD = json.loads((ROOT / "stashtrace/live/metrics/grafana.json").read_text())
GUIDE = ROOT / "docs/guides/metrics.md"
#: Two ranks that take steps of 20 ms until they are asked to end.
RANK = """
import os, time, stashtrace
end = time.monotonic() + 120
while not os.path.exists("end") and time.monotonic() < end:
    time.sleep(0.02)
    stashtrace.step()
"""
JOB = f'for rank in 0 1; do RANK=$rank WORLD_SIZE=2 "{sys.executable}" rank.py & done; wait'


@dataclass
class Scraped:
    """A run while Prometheus scrapes it."""

    folder: Path
    metrics_url: str
    prometheus_url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that a query gives now."""
        url = f"{self.prometheus_url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            content = json.load(answer)
        assert content["status"] == "success", content
        return list(content["data"]["result"])

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        """The series of a query, once there are some."""
        end = time.monotonic() + 60
        while not (found := self.query(expression)) and time.monotonic() < end:
            time.sleep(0.5)
        return found


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("scraped")
    (folder / "rank.py").write_text(RANK)
    port = free_port()
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        f"  - {{job_name: training, honor_labels: true, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}\n"
    )
    words = [sys.executable, "-m", "stashtrace", "run", "--metrics-port", str(port), "--metrics-file", ".", "--out"]
    run = subprocess.Popen(
        [*words, "run", "--no-merge", "--", "sh", "-c", JOB],
        cwd=folder,
        env={**ENVIRONMENT, "SLURM_JOB_ID": "4711"},
        stderr=subprocess.PIPE,
        text=True,
    )
    own = free_port()
    server = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{own}",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        found = Scraped(folder, f"http://127.0.0.1:{port}/metrics", f"http://127.0.0.1:{own}")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if found.query('stashtrace_steps_total{rank="1"} > 50'):
                    break
            except OSError:
                time.sleep(0.5)  # it has not begun to listen
            time.sleep(0.2)
        yield found
    finally:
        (folder / "end").touch()
        said = run.communicate(timeout=60)[1]
        server.terminate()
        server.wait(30)
    assert run.returncode == 0, said


def test_steps_of_both_ranks_are_there(scraped: Scraped) -> None:
    counts = {one["metric"]["rank"]: float(one["value"][1]) for one in scraped.wait_for("stashtrace_steps_total")}
    assert set(counts) == {"0", "1"}
    assert min(counts.values()) > 0
    (one,) = scraped.query("sum(stashtrace_stall_seconds_total) / sum(stashtrace_step_seconds_sum)")
    assert float(one["value"][1]) == pytest.approx(1)
    for one in scraped.query("stashtrace_rank_info"):
        assert one["metric"]["job"] == "4711"


def test_each_query_of_the_dashboard_has_an_answer(scraped: Scraped) -> None:
    scraped.wait_for("rate(stashtrace_steps_total[10s]) > 0")
    empty = []
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "10s")
            if not scraped.wait_for(re.sub(r"\$(instance|rank|job)\b", ".*", expression)):
                empty.append((panel["title"], expression))
    assert empty == []


def test_counters_only_grow(scraped: Scraped) -> None:
    time.sleep(3)
    assert scraped.query("resets(stashtrace_steps_total[1m]) > 0") == []
    assert scraped.query("resets(stashtrace_own_cpu_seconds_total[1m]) > 0") == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool is installed")
def test_promtool_finds_nothing_wrong(scraped: Scraped) -> None:
    with urllib.request.urlopen(scraped.metrics_url, timeout=10) as answer:
        text = answer.read()
    (path,) = scraped.folder.glob("stashtrace-*.prom")
    for content in (text, path.read_bytes()):
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=content, capture_output=True, timeout=30, check=False
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool is installed")
def test_rules_of_the_guide_are_rules(scraped: Scraped) -> None:
    """They hold for a job that goes on well: none of their alerts would fire."""
    rules = re.search(r"```yaml title=\"stashtrace-rules.yml\"\n(.*?)```", GUIDE.read_text(), re.S)
    assert rules is not None
    path = scraped.folder / "rules.yml"
    path.write_text(rules[1])
    checked = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, timeout=30, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    import yaml

    alerts = [rule for group in yaml.safe_load(rules[1])["groups"] for rule in group["rules"]]
    assert len(alerts) >= 3
    for rule in alerts:
        assert scraped.query(rule["expr"]) == [], rule["alert"]
