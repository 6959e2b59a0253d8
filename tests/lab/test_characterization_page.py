"""The page and the picture of a characterization: whole, escaped, and with room for stalls that are negative."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stashtrace.lab.characterize.answer import MEASURED, Characterization, ConfigurationRun
from stashtrace.lab.characterize.characterization_document import (
    characterization_page,
    characterization_picture,
    emulation_text,
    share_text,
    stacks,
)
from stashtrace.lab.characterize.run_figures import Figures
from stashtrace.text.units import duration_text

TIMES_MS = {
    1: (10.0, 10.2, 9.9),
    2: (9.5, 9.8, 9.7),
    3: (32.0, 33.0, 31.0),
    4: (20.0, 20.5, 19.5),
    5: (17.0, 17.5, 16.5),
}


@pytest.fixture
def found() -> Characterization:
    """Two ranks are faster than one here: the interconnect stall is negative."""
    facts = {
        "command": ["torchrun", "a<b>.py"],
        "devices_count": 2,
        "device": "cpu",
        "quick": True,
        "created": "2026-01-02",
        "network": {"emulated": True, "rate_bits_per_s": 10**10, "latency_ns": 0},
        "machine": {"cores_count": 4},
    }
    made = Characterization({}, facts, notes=["a & b"])
    for step, times in TIMES_MS.items():
        for repeat, ms in enumerate(times):
            figures = Figures(ms * 1e6, 60, 0, 2, 1, 2, {"compute": (ms * 1e6, ms * 1e6, ms * 1e6)})
            made.runs.append(ConfigurationRun(step, repeat, MEASURED, f"runs/step{step}-{repeat}", "", figures))
    return made


class Balance(HTMLParser):
    """Tags that were opened and not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole(found: Characterization) -> None:
    page = characterization_page(found)
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    assert "a&lt;b&gt;.py" in page
    assert "a &amp; b" in page
    assert "configuration 5 is emulated" in page
    assert ">2, emulated network</td>" in page
    assert "quick: fewer and shorter runs" in page
    assert "://" not in page, "nothing is loaded"
    for name in ("interconnect", "network", "prep", "fetch"):
        assert page.count(name) >= 2


def test_negative_stalls_have_no_width_in_the_stack_and_are_said(found: Characterization) -> None:
    page = characterization_page(found)
    stall = found.stalls()["interconnect"].lost_ns.value
    assert stall < 0
    assert f">{duration_text(stall)}</td>" in page
    assert f"interconnect {duration_text(stall)}, below zero: not drawn" in page
    assert 'width="-' not in page
    (bar,) = (bar for bar in stacks(found) if bar.title.startswith("all devices"))
    assert [share for name, share, _ in bar.parts if name == "interconnect"] == [0.0]


def test_each_bar_has_its_number_and_a_word_where_it_reaches_below_zero(found: Characterization) -> None:
    page = characterization_page(found).replace("\u00a0", " ")
    for name, stall in found.stalls().items():
        said = re.search(rf'<h3>{name}</h3><div><svg.*?</svg><p class="soft">(.*?)</p>', page)
        assert said[1].startswith(share_text(stall.clean))
        below = stall.clean.value < 0 and stall.clean.high < 0
        assert ("below zero, the steps without it were no shorter" in said[1]) == below
        assert ("it may be nothing" in said[1]) == (stall.clean.low < 0 <= stall.clean.high)
    steps = page.partition('id="steps"')[2].partition("</section>")[0]
    assert len(re.findall(r"<li><h3>[\w ,]+: [\d.]+ ms</h3>", steps)) == len(stacks(found))
    assert '<table class="wraps"' in steps


def test_the_picture(found: Characterization, tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text(characterization_picture(found), encoding="utf-8")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    bars = [child for child in root if child.tag.endswith("}svg")]
    assert len(bars) == len(stacks(found)) + len(found.stalls())
    words = "".join(root.itertext())
    assert all(bar.title in words for bar in stacks(found))


def test_without_any_step(found: Characterization) -> None:
    found.runs.clear()
    page = characterization_page(found)
    assert "no stall could be measured" in page
    assert stacks(found) == []


def test_nothing_is_emulated_where_step_5_was_not_measured(found: Characterization) -> None:
    found.runs = [run for run in found.runs if run.configuration != 5]
    found.absent[5] = ("not measured", "cannot make network namespaces")
    assert emulation_text(found) == ""
    page = characterization_page(found)
    assert "configuration 5 is emulated" not in page
    assert "is not measured: cannot make network namespaces" in page
