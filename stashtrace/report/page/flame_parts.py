"""The part of the page with flame graphs: functions of the user by kind of time, and what differs between ranks.

Horizontal places are percents, as in the other pictures. Which boxes are wide enough for a text depends on the width of
the window, which only the style sheet knows: a text has the class of the narrowest window that it is shown in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from stashtrace.analysis.lines.place_times import STEP
from stashtrace.report.blocks import Block, Command, Fold, Listing, Paragraph, Picture, Table, how, html_of
from stashtrace.report.flames import DEPTH_AT_MOST
from stashtrace.report.page.causes_and_budget import group_title
from stashtrace.report.page.html import paragraph, swatch, tag, text, unfolding
from stashtrace.report.page.page_words import KINDS
from stashtrace.schema.stall_kinds import WORKER_KINDS
from stashtrace.text import count_noun
from stashtrace.units import duration_text, percent_text, range_text

_ROW, _HEIGHT = 20, 19
#: Part of the picture's width from which on a box has 40 pixels or more in a window of 400, 680 and 1000 pixels.
_TEXT_CLASSES = ((0.11, "t0"), (0.062, "t1"), (0.042, "t2"))
#: Graphs of groups that are open; the others are folded in.
_OPEN = 2
_MakeRow: TypeAlias = Callable[[dict[str, Any]], tuple[str, ...]]
#: Shorter boxes than these are in the picture and the embedded JSON alone.
_ROWS_AT_MOST = 60


def flames_part(facts: dict[str, Any]) -> list[Block | None]:
    flames = facts["flames"]
    if not flames:
        return []
    groups = [_group(group, facts["budget"]["groups"]) for group in flames["groups"] if group["boxes"]]
    more = groups[_OPEN:]
    drawn = [
        paragraph(
            "The width of a box is its part of the mean counted step. The first row has the kinds of time; under each"
            " stand your functions in which it was spent, every one below its caller, and last, pale, what they called"
            " in a library. Empty room below a function is time in its own lines; below a kind, time without a sample."
        ),
        *groups[:_OPEN],
        unfolding(f"{len(more)} more groups of ranks" if len(more) > 1 else "The other ranks", *more) if more else "",
        *_difference(flames["difference"]),
        *_workers(flames["workers"]),
    ]
    return [
        Picture("".join(drawn), _lines(facts["lines"], facts["commands"]["lines"])),
        how(
            "the flame graphs",
            "Calls of a millisecond and more that wait, move files, collect garbage or take part in collectives were"
            " recorded with begin and end. The rest of each kind is divided as the samples taken in it are, about 50 a"
            " second: so a box of few samples may be wider or narrower by chance.",
            "The kinds are those of the budget. Functions of torch, other packages and Python's library are one pale"
            " box, and those between two functions of yours are left out.",
            f"Boxes below 0.2 % of the width or more than {DEPTH_AT_MOST} calls deep are not drawn.",
            command=facts["commands"]["lines"],
        ),
    ]


def _lines(found: dict[str, Any] | None, command: str) -> list[Block | None]:
    """Return the costliest lines, in place of the pictures."""
    if not found:
        return []
    rows = [
        (
            line["place"],
            KINDS[line["kind"]] if line["where"] == STEP else WORKER_KINDS[line["kind"]],
            f"{duration_text(line['time_ns'])} a {'step' if line['where'] == STEP else 'batch'}",
            _range(line),
            percent_text(line["share_ratio"]),
        )
        for line in found["lines"]
    ]
    longer = [
        f"rank {row['rank']} spends {duration_text(row['time_ns'])} ({_range(row)}) a step longer in `{row['place']}`"
        " than the others"
        for row in found["longer"]
    ]
    head = ("function and line", "kind of time", "mean", "between (95 %)", "share")
    said = "Over all ranks; the innermost function of the job's code counts."
    return [Table("", head, rows, (0, 1)), Listing(longer), Paragraph(said), Command(command, "All")]


def _range(row: dict[str, Any]) -> str:
    return range_text(duration_text(row["low_ns"]), duration_text(row["high_ns"]))


def _group(group: dict[str, Any], groups: list[dict[str, Any]]) -> str:
    title = group_title(group, named_kind=len({each["step_kind"] for each in groups}) > 1)
    content = [
        tag("h3", text(title)),
        flame_graph(group, f"{title}; functions by kind of time", "step"),
        _as_table(group, ("a step", "of the step"), title, lambda box: _row(box, group["whole_ns"], KINDS)),
    ]
    return tag("div", "".join(content), class_="wait")


def _workers(workers: dict[str, Any] | None) -> list[str]:
    if not workers or not workers["boxes"]:
        return []
    batches = count_noun(workers["batches_count"], "batch")
    title = f"Workers: {duration_text(workers['whole_ns'])} for a batch"
    content = [
        tag("h3", text(title)),
        paragraph(f"The width of a box is its part of the time of a batch in its worker, the mean of {batches}."),
        flame_graph(workers, f"{title}; functions by kind of time", "batch"),
        _as_table(
            workers, ("a batch", "of the batch"), title, lambda box: _row(box, workers["whole_ns"], WORKER_KINDS)
        ),
    ]
    return [tag("div", "".join(content), class_="wait")]


def _difference(found: dict[str, Any] | None) -> list[str]:
    if not found:
        return []
    slow, other = found["slow_rank"], found["rank"]
    title = f"Rank {slow} compared with rank {other}"
    lead = (
        f"Not counting waits for late ranks, a step takes {duration_text(found['slow_ns'])} on rank {slow}, the"
        f" slowest, and {duration_text(found['other_ns'])} on rank {other}"
        f"{', the median of the others' if found['others_count'] > 1 else ''}."
    )
    if not found["boxes"]:
        said = f"{lead} No function differs by more than the samples leave open."
        return [tag("h3", text(title)), paragraph(said)]
    names = (("longer", f"longer on rank {slow}"), ("shorter", f"shorter on rank {slow}"))
    key = "".join(f"<li>{swatch(kind)}{text(name)}</li>" for kind, name in names)
    content = [
        tag("h3", text(title)),
        paragraph(
            f"{lead} The width of a box is how much differs in it and below, {duration_text(found['whole_ns'])} in all,"
            " longer or shorter; what differs by no more than the samples leave open is left out."
        ),
        tag("ul", key, class_="key"),
        flame_graph(found, f"{title}; functions that differ", "step", ranks=(slow, other)),
        _as_table(found, (f"rank {slow}", f"rank {other}"), title, _compared_row),
    ]
    return [tag("div", "".join(content), class_="wait")]


def _as_table(graph: dict[str, Any], columns: tuple[str, str], subject: str, make: _MakeRow) -> str:
    """Return the longest boxes as a table, in the order of the picture."""
    boxes = graph["boxes"]
    least_ns = sorted((box["length_ns"] for box in boxes), reverse=True)[:_ROWS_AT_MOST][-1]
    rows = [make(box) for box in boxes if box["length_ns"] >= least_ns][:_ROWS_AT_MOST]
    more = f"; {len(boxes) - len(rows)} shorter ones are left out" if len(boxes) > len(rows) else ""
    head = ("function", "kind", *columns)
    shown = Table(f"Boxes of the picture, each above those that it calls{more}", head, rows, (0, 1))
    return "".join(html_of([Fold("As a table", [shown], subject)]))


def _row(box: dict[str, Any], whole_ns: int, kinds: dict[str, str]) -> tuple[str, ...]:
    share = percent_text(box["length_ns"] / max(whole_ns, 1))
    return (_name(box, kinds), kinds.get(box["kind"], box["kind"]), duration_text(box["length_ns"]), share)


def _compared_row(box: dict[str, Any]) -> tuple[str, ...]:
    times = (duration_text(box[name]) for name in ("slow_ns", "other_ns"))
    return (_name(box, KINDS), KINDS[box["kind"]], *times)


def _name(box: dict[str, Any], kinds: dict[str, str]) -> str:
    return str(box["text"] or kinds.get(box["kind"], box["kind"]))


def flame_graph(graph: dict[str, Any], label: str, whole: str, ranks: tuple[int, int] | None = None) -> str:
    """Return the picture of a graph; ``whole`` is what its width stands for: a step or a batch.

    ``ranks``: those that are compared, the slow one first, if the boxes are differences.
    """
    kinds = WORKER_KINDS if whole == "batch" else KINDS
    whole_ns = max(graph["whole_ns"], 1)
    parts = []
    for box in graph["boxes"]:
        share = box["length_ns"] / whole_ns
        told = _told(box, whole, graph["whole_ns"]) if ranks is None else _compared(box, ranks)
        shown = next((name for least, name in _TEXT_CLASSES if share >= least), None)
        words = _name(box, kinds)
        parts.append(
            tag(
                "svg",
                tag("title", text(f"{words}{'' if box['depth'] == 0 else ', ' + kinds.get(box['kind'], '')}: {told}"))
                + '<rect width="100%" height="100%"/>'
                + ('<rect class="edge" width="100%" height="3"/>' if box["depth"] == 0 and ranks is None else "")
                + (_words(words, shown) if shown else ""),
                class_=f"{_class(box, ranks)} {'kind' if box['depth'] == 0 else 'lib' if box['library'] else 'own'}",
                x=f"{100 * box['begin_ns'] / whole_ns:.3f}%",
                y=str(_ROW * box["depth"]),
                width=f"{100 * share:.3f}%",
                height=str(_HEIGHT),
            )
        )
    height = _ROW * (1 + max(box["depth"] for box in graph["boxes"]))
    return tag("svg", "".join(parts), class_="flame", width="100%", height=str(height), role="img", aria_label=label)


def _words(words: str, shown: str) -> str:
    """Return the words of a box; ``shown``: the class of its width.

    HTML, since it ends words in dots where the box is too narrow; text of SVG is cut within a letter.
    """
    return tag("foreignObject", tag("div", text(words), class_=shown), width="100%", height="100%")


def _class(box: dict[str, Any], ranks: tuple[int, int] | None) -> str:
    """Return the class of a box's colour."""
    if ranks is None:
        return f"k-{box['kind']}"
    return "k-longer" if box["slow_ns"] > box["other_ns"] else "k-shorter"


def _told(box: dict[str, Any], whole: str, whole_ns: int) -> str:
    """Say how long a box is, and how many samples it rests on."""
    share = percent_text(box["length_ns"] / max(whole_ns, 1))
    samples = f"; {count_noun(box['samples_count'], 'sample')}" if box["samples_count"] else ""
    return f"{duration_text(box['length_ns'])} a {whole}, {share} of {duration_text(whole_ns)}{samples}"


def _compared(box: dict[str, Any], ranks: tuple[int, int]) -> str:
    """Say how much longer a box is on one rank than on the other."""
    slow_ns, other_ns = box["slow_ns"], box["other_ns"]
    verb = "longer" if slow_ns > other_ns else "shorter"
    times = f"{duration_text(slow_ns)} a step on rank {ranks[0]}, {duration_text(other_ns)} on rank {ranks[1]}"
    return f"{duration_text(abs(slow_ns - other_ns))} {verb}: {times}"
