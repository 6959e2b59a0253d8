"""The HTML page: whole without network and script, safe against hostile names, right for a reader of screens."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from builders import MS, TraceBuilder
from summary.scenes import job

from stashtrace.report.document import report_facts
from stashtrace.report.page.html import embedded_json, prose, tag
from stashtrace.report.page.page import page
from stashtrace.report.page.page_words import KINDS, sentence
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import COLUMN_LABELS
from stashtrace.text.units import duration_text

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x1b]0;"
_VOID = {"meta", "br", "img", "input"}


class Reader(HTMLParser):
    """The elements of a page: (tag, attributes, text inside), and what is wrong with how they nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[int] = []
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()
        self.wrong += [f"{self.elements[at][0]} is not closed" for at in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in _VOID:
            self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.elements[self.open[-1]][0] != tag:
            self.wrong.append(f"{tag} closes nothing at {self.getpos()}")
            return
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for at in self.open:
            self.elements[at][2].append(data)

    def all(self, *tags: str) -> list[tuple[str, dict[str, str | None], str]]:
        return [(tag, attributes, "".join(text)) for tag, attributes, text in self.elements if tag in tags]


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    return report_facts(job(ranks=12, prep={3: 13}, fetch={3: 44}, sleep={7: 10})[1], ["./stash-0412"])


@pytest.fixture(scope="module")
def made(facts: dict[str, Any]) -> str:
    return page(facts)


@pytest.fixture(scope="module")
def reader(made: str) -> Reader:
    return Reader(made)


def without_steps() -> dict[str, Any]:
    build = TraceBuilder()
    build.rank(0).io(0, 5 * MS, path="/data/a")
    return report_facts(build.trace("./x"))


def hostile() -> dict[str, Any]:
    """Facts of a run whose path, host, file, group and command are hostile."""
    build, _ = job(prep={0: 13}, fetch={0: 44}, hosts=(HOSTILE,))
    for row in build.rows["io"]:
        row["path_code"] = build.strings.code(f"/data/{HOSTILE}")
    for row in build.rows["groups"]:
        row["name_code"] = build.strings.code(HOSTILE)
    key, value = build.strings.code("command"), build.strings.code(HOSTILE)
    build.add("metadata", process_id=-1, key_code=key, value_code=value)
    build.loss(HOSTILE, 3, collector=HOSTILE, severity=1, advice=HOSTILE)
    return report_facts(build.trace(HOSTILE), [HOSTILE])


def test_the_elements_nest(reader: Reader) -> None:
    assert reader.wrong == []


def test_the_parts_are_in_their_order_and_the_verdict_is_first(reader: Reader) -> None:
    titles = [text for _, _, text in reader.all("h2")]
    assert titles == [
        "What slows it down",
        "Where the time of a step goes",
        "How long each step takes",
        "Which steps and which ranks",
        "The costliest waits",
        "Slow steps",
        "Links",
        "What was lost, and own cost",
        "Machine, versions and command",
    ]
    listed = [attributes["href"] for _, attributes, _ in reader.all("a")][1:]
    assert listed == [f"#{attributes['id']}" for _, attributes, _ in reader.all("section")]


def test_every_sentence_of_the_verdicts_is_the_summary_s(facts: dict[str, Any], reader: Reader) -> None:
    shown = " ".join("".join(text) for tag, _, text in reader.elements if tag in ("p", "li")).replace("\u00a0", " ")
    for finding in facts["findings"]:
        if finding["section"] == "verdict":
            assert finding["text"].replace("`", "") in shown
            assert all(said.replace("`", "") in shown for said in finding["evidence_text"])


def test_every_bar_adds_up_to_a_hundred_percent(reader: Reader) -> None:
    bars = [attributes for tag, attributes, _ in reader.all("svg") if attributes.get("class") == "bar"]
    assert len(bars) == 3
    for bar in bars:
        shares = [float(number) for number in re.findall(r"([\d.]+) %", str(bar["aria-label"]).partition(": ")[2])]
        assert sum(shares) == pytest.approx(100.0)


def test_the_page_asks_for_nothing_from_outside(made: str, reader: Reader) -> None:
    for _, attributes, _ in reader.all(*{name for name, _, _ in reader.elements}):
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    style = "".join(text for _, _, text in reader.all("style"))
    assert "url(" not in style
    assert "@import" not in style
    assert not re.search(r"https?://", made)


def test_only_its_script_may_run(made: str, reader: Reader) -> None:
    policy = next(a["content"] for _, a, _ in reader.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    data, script = reader.all("script")
    assert data[1]["type"] == "application/json"
    digest = base64.b64encode(hashlib.sha256(script[2].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none'")
    assert len(reader.all("script")) == 2


def test_the_facts_are_in_the_page_as_json(facts: dict[str, Any], reader: Reader) -> None:
    inside = next(text for _, attributes, text in reader.all("script") if attributes.get("id") == "facts")
    assert json.loads(inside) == facts


def test_no_name_becomes_markup(facts: dict[str, Any]) -> None:
    made = page(hostile())
    reader = Reader(made)
    assert reader.wrong == []
    assert len(reader.all("script")) == 2
    assert reader.all("img") == []
    assert "\u202e" not in made
    assert "\x1b" not in made
    shown = "".join(text for tag, _, text in reader.all("main"))
    assert "<img src=x onerror=alert(2)>" in shown, "it is shown as the text that it is"
    inside = next(text for _, attributes, text in reader.all("script") if attributes.get("id") == "facts")
    assert HOSTILE in json.loads(inside)["path"]


def test_json_in_the_page_cannot_end_its_element() -> None:
    document = {HOSTILE: [HOSTILE, "<!--", "]]>", float("nan"), 1.5, "\ud800"]}
    written = embedded_json(document)
    assert not set(written) & set("<>&")
    assert json.loads(written) == {HOSTILE: [HOSTILE, "<!--", "]]>", None, 1.5, "\ud800"]}


def test_attributes_hold_any_text() -> None:
    assert tag("p", "", title='a"b<c') == '<p title="a&quot;b&lt;c"></p>'


def test_a_page_without_steps_says_so_and_is_whole(reader: Reader) -> None:
    made = Reader(page(without_steps()))
    assert made.wrong == []
    text = " ".join(text for _, _, text in made.all("main"))
    assert "no rank has a step, so there is no budget to show" in text.lower()
    assert "torch_step" in text
    assert "/data/a" in text
    titles = [title for _, _, title in made.all("h2")]
    assert "Machine, versions and command" in titles
    assert "Which steps and which ranks" not in titles


def test_every_kind_of_time_has_a_name_and_a_colour() -> None:
    style = page(without_steps())
    for kind in (*(kind.name.lower() for kind in StallKind), *COLUMN_LABELS):
        assert f".k-{kind}" in style
    assert set(KINDS) == {kind.name.lower() for kind in StallKind}


def test_a_reader_of_screens_finds_titles_landmarks_and_names(reader: Reader) -> None:
    tags = {tag for tag, _, _ in reader.elements}
    assert {"header", "nav", "main", "footer", "h1"} <= tags
    assert dict(reader.all("html")[0][1]) == {"lang": "en"}
    assert reader.all("title")[0][2]
    assert len(reader.all("h1")) == 1
    levels = [int(tag[1]) for tag, _, _ in reader.all("h1", "h2", "h3", "h4")]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [attributes["id"] for _, attributes, _ in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes, _ in reader.all("section"):
        assert attributes["aria-labelledby"] in ids


def test_every_picture_says_what_it_shows_or_is_passed_over(reader: Reader) -> None:
    outer = [attributes for _, attributes, _ in reader.all("svg") if "x" not in attributes]
    assert outer
    for attributes in outer:
        named = attributes.get("role") == "img" and len(attributes.get("aria-label") or "") > 20
        assert named or attributes.get("aria-hidden") == "true"


def test_every_table_has_a_caption_and_heads_with_a_scope(reader: Reader) -> None:
    tables = len(reader.all("table"))
    assert tables > 5
    assert len(reader.all("caption")) == tables
    assert all(attributes.get("scope") in ("col", "row") for _, attributes, _ in reader.all("th"))


def test_every_summary_that_opens_has_a_unique_name(reader: Reader) -> None:
    names = [text for _, _, text in reader.all("summary")]
    assert len(names) == len(set(names))


def test_every_part_says_how_it_is_known(facts: dict[str, Any], made: str) -> None:
    for part in re.findall(r"<section.*?</section>", made, re.S):
        assert part.count("How do you know?") == 1
    known = made.partition('<section id="verdict"')[2].partition('class="how"')[2].partition("</details>")[0]
    shown = [f for f in facts["findings"] if f["section"] == "verdict"]
    assert [known.count(f"<li>{prose(f['text'])}<ul>") for f in shown] == [1] * len(shown)
    assert known.count("Method: ") == len(shown)


def test_the_title_reads_well_for_any_name_of_a_run(facts: dict[str, Any]) -> None:
    made = page({**facts, "path": "before"})
    assert "<h1>Where the time of run <code>before</code> went</h1>" in made


def test_every_part_of_the_time_line_has_its_command(made: str) -> None:
    for name in ("curve", "heat", "waits", "links"):
        part = made.partition(f'<section id="{name}"')[2].partition("</section>")[0]
        assert "stashtrace view ./stash-0412 --window" in part


def main_text(made: str) -> str:
    whole = "".join(text for _, _, text in Reader(made).all("body"))
    return whole.split('{"stashtrace_report"')[0].replace("\u00a0", " ")


def test_the_headline_is_said_once(facts: dict[str, Any], made: str) -> None:
    cause = facts["do_first"][0]["what"]
    assert main_text(made).count(cause) == 1
    assert facts["verdict"] not in made.partition("<main")[0]


def test_each_cause_has_its_saving_and_what_is_left_of_a_step(facts: dict[str, Any], made: str) -> None:
    causes = [one for one in facts["do_first"] if not one["reason"]]
    listed = made.partition('<ol class="verdicts causes">')[2].partition("</ol>")[0]
    drawn = re.findall(r'<svg class="saves".*?aria-label="Without it a step takes (.*?) instead of (.*?)[,;]', listed)
    assert len(drawn) == sum(one["saved_ns"] > 0 for one in causes) > 0
    for (_, before), (after, _) in pairwise([("", duration_text(causes[0]["step_ns"])), *drawn]):
        assert before != after
    for (_, before), (after, _) in zip(drawn[1:], drawn, strict=False):
        assert before == after, "a later cause begins where the one before it ended"
    for one in causes:
        assert prose(sentence(one["saving"])) in listed


def test_what_puts_all_figures_in_doubt_stands_above_the_first_part(facts: dict[str, Any], made: str) -> None:
    said = "LOW CONFIDENCE: 12 % of the step is unexplained"
    doubted = page({**facts, "warnings": [said]})
    head = doubted.partition("<main")[0]
    assert f'<p class="doubt">{prose(said)}.</p>' in head
    assert head.index('class="doubt"') < head.index("<nav")
    assert 'class="doubt"' not in made


def test_maps_of_kinds_below_a_percent_are_folded_in(facts: dict[str, Any]) -> None:
    heat = facts["heat"]
    small = {**heat["kinds"][-1], "share_ratio": 0.004, "most_permille": 640}
    large = [{**kind, "share_ratio": 0.02} for kind in heat["kinds"][:-1]]
    made = page({**facts, "heat": {**heat, "kinds": [*large, small]}})
    part = made.partition('<section id="heat"')[2].partition("</section>")[0]
    folded = part.partition("<summary>Below 1 % of all steps: ")[2]
    assert folded.startswith(f"{KINDS[small['kind']]} (up to 64 % of a cell)</summary>")
    assert f'data-kind="{small["kind"]}"' in folded
    assert all(f'data-kind="{kind["kind"]}"' not in folded for kind in heat["kinds"][:-1])


def test_more_than_four_bars_are_folded_in(facts: dict[str, Any]) -> None:
    groups = [{**facts["budget"]["groups"][0], "ranks": str(rank)} for rank in range(6)]
    made = page({**facts, "budget": {**facts["budget"], "groups": groups}})
    part = made.partition('<section id="budget"')[2].partition("</section>")[0]
    before, _, behind = part.partition("<summary>2 more bars</summary>")
    assert [before.count('class="bar"'), behind.count('class="bar"')] == [4, 2]


def test_sentences_begin_with_a_capital_but_for_names_of_code() -> None:
    assert sentence("half of it") == "Half of it."
    assert sentence("num_workers=3 instead of 2") == "num_workers=3 instead of 2."
    assert sentence("") == ""


def luminance(colour: str) -> float:
    """Relative luminance of ``#rgb`` or ``#rrggbb`` (WCAG 2)."""
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_bars_stand_out_from_the_paper(made: str, scheme: str) -> None:
    blocks = re.findall(r":root \{(.*?)\}", made, re.S)[:2]
    colours: dict[str, str] = dict(re.findall(r"--([\w-]+): (#\w+)", blocks[scheme == "dark"]))
    for name in ("ink", "soft", "link"):
        assert contrast(colours[name], colours["paper"]) >= 4.5, name
    kinds = set(re.findall(r"\.k-[\w-]+ \{ fill: var\(--([\w-]+)\)", made))
    assert len(kinds) >= 10
    for name in kinds:
        assert contrast(colours[name], colours["ground"]) >= 2.5, name
        assert contrast(colours[name], colours["paper"]) >= 2.9, name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_classes_of_heat_maps_differ_in_brightness_alone(made: str, scheme: str) -> None:
    """So that they can be distinguished without seeing colour."""
    blocks = re.findall(r":root \{(.*?)\}", made, re.S)[:2]
    colours: dict[str, str] = dict(re.findall(r"--(c\d): (#\w+)", blocks[scheme == "dark"]))
    bright = [luminance(colours[f"c{number}"]) for number in range(8)]
    assert bright == sorted(bright, reverse=scheme == "light")
    for one, other in pairwise(range(8)):
        assert contrast(colours[f"c{one}"], colours[f"c{other}"]) >= 1.12
