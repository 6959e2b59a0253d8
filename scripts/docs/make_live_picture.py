"""Make docs/images/live.png: the screen of ``stashtrace live`` of a job that runs now, as a terminal of 80x24 shows it.

    python scripts/docs/make_live_picture.py RUN [docs/images/live.png]

Needs Chromium and the package rich.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "timeline"))

from browser import Browser  # noqa: E402

from stashtrace.cli.commands.live import KEYS  # noqa: E402
from stashtrace.live.view.text import live_lines  # noqa: E402
from stashtrace.live.view.watched import Watched  # noqa: E402
from stashtrace.summary.style import Style  # noqa: E402

COLUMNS, LINES = 80, 24
#: Of a character, in pixels.
WIDTH, HEIGHT, MARGIN = 9.64, 20, 14
_PAGE = """<!DOCTYPE html><meta charset="utf-8">
<body style="margin:0;background:{background};color:{foreground}">
<pre style="margin:%dpx;font:16px/%dpx 'DejaVu Sans Mono',monospace">{code}</pre>"""


def main() -> int:
    """Look at the run, and draw what is seen."""
    picture = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "images" / "live.png"
    view = Watched(Path(sys.argv[1])).peek()
    lines = live_lines(view, Style(COLUMNS, colour=True), height=LINES, keys=KEYS)
    console = Console(record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="standard")
    console.print(Text.from_ansi("\n".join(lines)))
    page = console.export_html(theme=DIMMED_MONOKAI, inline_styles=True, code_format=_PAGE % (MARGIN, HEIGHT))
    size = round(COLUMNS * WIDTH) + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    with tempfile.TemporaryDirectory() as folder, Browser(size) as browser:
        (Path(folder) / "live.html").write_text(page, encoding="utf-8")
        tab = browser.open(f"file://{folder}/live.html")
        tab.wait_for("document.fonts.status == 'loaded' && document.querySelector('pre') != null", 30)
        tab.screenshot(picture)
    print(f"wrote {picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
