"""The page in a real browser: narrow and wide, light and dark, with and without script, on paper, and read aloud.

``npm install --no-save axe-core`` in the root of the repository, or ``STASHTRACE_TEST_AXE=path/to/axe.min.js``, adds
the rules of axe-core to the checks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from summary.scenes import job
from test_report_slow import job as slow_job
from timeline.browser import Browser, Page, find_chromium

from stashtrace.report.document import report_facts
from stashtrace.report.page.page import page

pytestmark = [
    pytest.mark.skipif(find_chromium() is None, reason="no chromium is installed"),
    pytest.mark.slow,
]
ROOT = Path(__file__).resolve().parents[2]
AXE = Path(os.environ.get("STASHTRACE_TEST_AXE") or ROOT / "node_modules" / "axe-core" / "axe.min.js")
WIDTHS = (390, 1280)
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    trace = job(ranks=12, prep={3: 13}, fetch={3: 44}, sleep={7: 10})[1]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(report_facts(trace, ["./stash-0412"])), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def show(browser: Browser, address: str, width: int = 1280, scheme: str = "light", *, script: bool = True) -> Page:
    """The page in a tab of this width and colour scheme."""
    shown = browser.open("about:blank")
    size: dict[str, Any] = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    shown.call("Emulation.setDeviceMetricsOverride", **size)
    shown.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    shown.call("Emulation.setScriptExecutionDisabled", value=not script)
    shown.call("Page.navigate", url=address)
    shown.wait_for("document.readyState === 'complete' && document.querySelector('footer') !== null", 60)
    return shown


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_sticks_out_of_the_window(browser: Browser, address: str, width: int) -> None:
    shown = show(browser, address, width)
    shown.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    wide = shown.evaluate(
        "[...document.querySelectorAll('main p, main li, main h2, main h3, main svg.bar, main svg.heat, main svg.cut')]"
        f".filter((each) => each.getBoundingClientRect().right > {width}).map((each) => each.outerHTML.slice(0, 80))"
    )
    assert wide == []


def test_a_mark_of_a_slow_step_jumps_to_its_wait(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "slow.html"
    path.write_text(page(report_facts(slow_job({39: 60, 44: 30}), ["./x"])), encoding="utf-8")
    shown = show(browser, path.as_uri())
    shown.evaluate("document.querySelector('a.mark').click()")
    shown.wait_for("location.hash !== ''", 10)
    seen = "document.querySelector(':target').getBoundingClientRect()"
    assert shown.evaluate(f"{seen}.top >= -1 && {seen}.top < innerHeight")


def test_dark_and_light_are_apart(browser: Browser, address: str) -> None:
    colours = {
        scheme: show(browser, address, scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in SCHEMES
    }
    assert colours == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 22, 22)"}


def test_the_script_is_allowed_and_sorts(browser: Browser, address: str) -> None:
    shown = show(browser, address)
    column = "document.querySelector('#links table.sortable')"
    assert shown.evaluate(f"{column}.querySelectorAll('th button').length") == 7
    cells = f"[...{column}.tBodies[0].rows].map((row) => Number(row.cells[4].dataset.key))"
    shown.evaluate(f"{column}.querySelectorAll('th button')[4].click()")
    first = shown.evaluate(cells)
    assert first == sorted(first, reverse=True)
    assert shown.evaluate(f"{column}.querySelectorAll('th')[4].getAttribute('aria-sort')") == "descending"
    shown.evaluate(f"{column}.querySelectorAll('th button')[4].click()")
    assert shown.evaluate(cells) == sorted(first)
    names = shown.evaluate("[...document.querySelectorAll('#links tbody th')].map((each) => each.textContent)")
    shown.evaluate(f"{column}.querySelector('th button').click()")
    sorted_names = shown.evaluate("[...document.querySelectorAll('#links tbody th')].map((each) => each.textContent)")
    assert sorted(names) == sorted(sorted_names)


def test_a_cell_of_a_heat_map_is_explained_under_the_pointer(browser: Browser, address: str) -> None:
    shown = show(browser, address)
    value = shown.evaluate(
        """(() => {
          const map = document.querySelector("svg.heat[data-kind=straggler]");
          const box = map.getBoundingClientRect();
          const facts = JSON.parse(document.getElementById("facts").textContent).heat;
          const part = facts.kinds.find((kind) => kind.kind === "straggler");
          const [row, column] = [5, 8];
          const at = { clientX: box.left + (box.width * (column + 0.5)) / facts.steps.length,
                       clientY: box.top + (box.height * (row + 0.5)) / facts.ranks.length };
          map.dispatchEvent(new PointerEvent("pointermove", at));
          return [map.closest(".map").querySelector(".now").textContent, part.permille[row][column] / 10,
                  facts.ranks[row], facts.steps[column]];
        })()"""
    )
    text, share, rank, step = value
    assert text == f"rank {rank}, step {step}: {share:.1f} %"
    assert share > 0


def test_a_place_of_the_curve_is_explained_under_the_pointer(browser: Browser, address: str) -> None:
    shown = show(browser, address)
    said = shown.evaluate(
        """(() => {
          const curve = document.querySelector(".curve"), box = curve.getBoundingClientRect();
          const told = () => curve.parentElement.querySelector(".now").textContent;
          curve.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 1, clientY: box.top + 9 }));
          const over = told();
          curve.dispatchEvent(new PointerEvent("pointerleave"));
          return [over, told(), JSON.parse(document.getElementById("facts").textContent).curve];
        })()"""
    )
    over, after, known = said
    assert over.startswith(f"step {known['first_steps'][0]}: ")
    assert over.endswith((" ms)", " ms"))
    assert after == ""


def test_without_script_everything_is_there(browser: Browser, address: str) -> None:
    with_script, without = (show(browser, address, script=script) for script in (True, False))
    assert without.evaluate("document.querySelectorAll('th button').length") == 0
    text = "document.querySelector('main').textContent.replace(/\\s+/g, ' ')"
    assert without.evaluate(text) == with_script.evaluate(text)


def test_on_paper_it_is_light_and_whole(browser: Browser, address: str) -> None:
    shown = show(browser, address, scheme="dark")
    shown.call(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert shown.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert len(shown.call("Page.printToPDF", printBackground=True)["data"]) > 20_000


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm install --no-save axe-core")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("open_all", [False, True], ids=["closed", "open"])
def test_axe_finds_nothing(browser: Browser, address: str, width: int, scheme: str, open_all: bool) -> None:
    shown = show(browser, address, width, scheme)
    if open_all:
        shown.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    shown.evaluate(AXE.read_text(encoding="utf-8"))
    found = shown.evaluate(
        "axe.run(document).then((answer) => answer.violations.map((rule) => "
        "[rule.id, rule.impact, rule.nodes.slice(0, 3).map((node) => node.html.slice(0, 200))]))"
    )
    assert found == []
