"""Flame graphs of the page: boxes of the user's functions by kind of time, and what differs between two ranks.

    depth 0   [ compute                       ][ other       ]     kinds of time, in the order of the budget
    depth 1   [ main                          ][ main        ]     functions of the user, below their callers
    depth 2   [ torch backward     ][ loss ]   [ hook     ]        a call of a library below them

A box is as long as its time; what its children leave is time in its own lines, and below a kind, time without a sample.
Horizontal places are percents, as in the other pictures. Which boxes are wide enough for a text depends on the width of
the window, which only the style sheet knows: a text has the class of the narrowest window that it is shown in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from stashtrace.analysis.lines.between_ranks import longer_lines
from stashtrace.analysis.lines.flames import flames, unseen_share
from stashtrace.analysis.lines.lines import costliest_rows
from stashtrace.analysis.lines.place_times import STEP, WORKER
from stashtrace.analysis.lines.user_frames import place_of
from stashtrace.report import blocks
from stashtrace.report.blocks import Block, Command, Fold, Listing, Paragraph, Picture, how, html_of
from stashtrace.report.page.budget_and_steps import group_title
from stashtrace.report.page.html import paragraph, swatch, tag, text, unfolding
from stashtrace.report.page.page_words import KINDS
from stashtrace.report.policy import POLICY
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import STALL_KINDS, WORKER_KINDS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text, percent_text, range_text, ranks_in

#: Time spent waiting for late ranks, which another rank's lateness makes.
_WAITS_FOR_RANKS = "straggler"


@dataclass(slots=True)
class _Node:
    """A kind, a function below its callers, or a call of a library."""

    node_id: int = 0
    text: str = ""
    is_library: bool = False
    #: Of the rank or ranks shown; ``other`` is the same of the rank that they are compared with.
    time_ns: int = 0
    low_ns: int = 0
    high_ns: int = 0
    samples_count: int = 0
    other: _Node | None = None
    children: list[_Node] = field(default_factory=list)

    @property
    def length_ns(self) -> int:
        """How long its box is: its time, or what differs in it and below, be it longer or shorter."""
        if not self.other:
            return self.time_ns
        below_ns = self._delta_ns - sum(child._delta_ns for child in self.children)
        return abs(below_ns) + sum(child.length_ns for child in self.children)

    @property
    def _delta_ns(self) -> int:
        return self.time_ns - (self.other.time_ns if self.other else 0)

    @property
    def is_certain(self) -> bool:
        """Whether the two ranks differ by more than their samples leave open."""
        assert self.other is not None
        return self.low_ns > self.other.high_ns or self.high_ns < self.other.low_ns

    def match(self, other: _Node, unseen: tuple[int, int]) -> None:
        """Compare with a node of another rank, and children with children.

        ``unseen``: of this rank and of the other one, how long a function may take that no sample saw.
        """
        self.other = other
        named = {child.node_id: (child.text, child.is_library) for child in (*other.children, *self.children)}
        ours, theirs = ({child.node_id: child for child in node.children} for node in (self, other))
        for node_id, said in named.items():
            ours.setdefault(node_id, _Node(node_id, *said, high_ns=unseen[0]))
            ours[node_id].match(theirs.get(node_id, _Node(high_ns=unseen[1])), unseen)
        self.children = list(ours.values())

    def keep_certain(self) -> bool:
        """Drop what does not differ with certainty, nor anything below it; return whether this stays."""
        self.children = [child for child in self.children if child.keep_certain()]
        return bool(self.children) or self.is_certain

    def box(self) -> dict[str, Any]:
        """Return what the page shows of it."""
        known = {"text": self.text, "library": self.is_library, "samples_count": self.samples_count}
        if self.other is None:
            return known
        return {**known, "slow_ns": self.time_ns, "other_ns": self.other.time_ns, "certain": self.is_certain}


def flame_graphs(trace: Trace, groups: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the flame graphs of a run; None if it has no stacks.

    ``groups``: those of the budget. Returns ``groups``: per group its keys in the budget but for its columns, and a
    graph; ``difference``: ``slow_rank`` (which takes longest, not counting waits for others) and ``rank`` (the median
    one of ``others_count``), ``slow_ns`` and ``other_ns`` (that time) and a graph, or None; ``workers``:
    ``batches_count`` and a graph, or None. A graph is ``whole_ns`` (mean of a step or batch; of a difference all
    that differs), ``samples_count``, ``hidden_count`` (boxes that are too short to draw) and ``boxes``, from left
    to right, each before those below it: ``kind``, ``depth``, ``begin_ns``, ``length_ns``, ``text`` (empty of a
    kind), ``library`` and ``samples_count``; of a difference also ``slow_ns``, ``other_ns`` and ``certain``.
    """
    found = flames(trace)
    if not len(found) or not groups:
        return None
    other_kinds = [group["step_kind"] for group in groups if group["step_kind"]]
    steps = found.take(found["where"] == STEP)
    trains = ~np.isin(steps["step_kind"], other_kinds)
    drawn = []
    for group in groups:
        of_kind = steps["step_kind"] == group["step_kind"] if group["step_kind"] else trains
        rows = steps.take(of_kind & np.isin(steps["rank"], ranks_in(group["ranks"])))
        known = {name: value for name, value in group.items() if name != "columns"}
        drawn.append({**known, **_graph(_kinds(trace, rows))})
    batches = found.take(found["where"] == WORKER)
    workers = {"batches_count": _windows_count(batches), **_graph(_kinds(trace, batches))} if len(batches) else None
    return {"groups": drawn, "difference": _difference(trace, steps.take(trains)), "workers": workers}


def _windows_count(rows: Table) -> int:
    return int(GroupBy(rows["rank"], rows["step_kind"]).max(rows["windows_count"]).sum())


def _kinds(trace: Trace, rows: Table) -> dict[str, _Node]:
    """Return the tree of each kind: means over all steps or batches of the ranks in the rows."""
    by_node = GroupBy(rows["kind"], rows["node_id"])
    times = np.column_stack([rows[name] * rows["windows_count"] for name in ("time_ns", "low_ns", "high_ns")])
    means, samples = by_node.sum(times) // max(_windows_count(rows), 1), by_node.sum(rows["samples_count"])
    row = by_node.argmax(rows["time_ns"])
    made: dict[tuple[str, int], _Node] = {}
    for at, key in enumerate(zip(*(keys.tolist() for keys in by_node.keys), strict=True)):
        time_ns, low_ns, high_ns = means[at].tolist()
        made[key] = _Node(key[1], *_text_of(trace, rows, int(row[at])), time_ns, low_ns, high_ns, int(samples[at]))
    for (kind, node_id), parent_id in zip(made, rows["parent_id"][row].tolist(), strict=True):
        if node_id:
            made[kind, parent_id].children.append(made[kind, node_id])
    return {kind.name: made[kind.name, 0] for kind in STALL_KINDS if (kind.name, 0) in made}


def _text_of(trace: Trace, rows: Table, row: int) -> tuple[str, bool]:
    """Return what a row is in words, and whether it is a call of a library."""
    leaf = trace.text(rows["leaf_code"][row])
    name, path = (trace.text(rows[column][row]) for column in ("function_code", "path_code"))
    return (leaf, True) if leaf else (place_of(name, path, int(rows["line"][row])), False)


def _difference(trace: Trace, steps: Table) -> dict[str, Any] | None:
    """Compare the rank that takes longest, not counting waits for others, with the median of the others."""
    ranks = GroupBy(steps["rank"])
    if len(ranks) < 2:
        return None
    parts = [steps.take(rows) for rows in ranks]
    works = [(part["node_id"] == 0) & (part["kind"] != _WAITS_FOR_RANKS) for part in parts]
    whole_ns = [(part["time_ns"] * part["windows_count"])[work].sum() for part, work in zip(parts, works, strict=True)]
    work_ns = [int(ns) // max(_windows_count(part), 1) for ns, part in zip(whole_ns, parts, strict=True)]
    order = np.argsort(work_ns, kind="stable")
    slow, other = int(order[-1]), int(order[(len(order) - 2) // 2])
    ours, theirs = _kinds(trace, parts[slow]), _kinds(trace, parts[other])
    kinds = {}
    for kind in (kind.name for kind in STALL_KINDS if kind.name != _WAITS_FOR_RANKS):
        root, other_root = (tree.get(kind, _Node()) for tree in (ours, theirs))
        root.match(other_root, (_unseen_ns(root), _unseen_ns(other_root)))
        if root.keep_certain():
            kinds[kind] = root
    known = {"slow_rank": int(ranks.values[slow]), "rank": int(ranks.values[other])}
    known["others_count"] = len(ranks) - 1
    return {**known, "slow_ns": work_ns[slow], "other_ns": work_ns[other], **_graph(kinds)}


def _unseen_ns(root: _Node) -> int:
    """Return how long a function may take, with 95 % confidence, that no sample of a kind saw."""
    return round(root.time_ns * unseen_share(root.samples_count))


def _graph(kinds: dict[str, _Node]) -> dict[str, Any]:
    """Return the boxes of the trees of all kinds, side by side."""
    whole_ns = sum(root.length_ns for root in kinds.values())
    boxes: list[dict[str, Any]] = []
    begin_ns = hidden_count = 0
    for kind, root in kinds.items():
        hidden_count += _add(boxes, kind, root, begin_ns, 0, POLICY.drawn_box_ratio * whole_ns)
        begin_ns += root.length_ns
    samples_count = sum(root.samples_count for root in kinds.values())
    return {"whole_ns": whole_ns, "samples_count": samples_count, "hidden_count": hidden_count, "boxes": boxes}


def _add(boxes: list[dict[str, Any]], kind: str, node: _Node, begin_ns: int, depth: int, least_ns: float) -> int:
    """Add the box of a node and those below it, the longest first; return how many are too short or too deep."""
    if node.length_ns < max(least_ns, 1) or depth > POLICY.drawn_depth_count:
        return 1
    known = {"kind": kind, "depth": depth, "begin_ns": begin_ns, "length_ns": node.length_ns}
    boxes.append({**known, **node.box()})
    hidden_count = 0
    for child in sorted(node.children, key=lambda child: -child.length_ns):
        hidden_count += _add(boxes, kind, child, begin_ns, depth + 1, least_ns)
        begin_ns += child.length_ns
    return hidden_count


def costliest_lines(trace: Trace) -> dict[str, Any] | None:
    """Return the costliest lines of all ranks together; None without stacks.

    ``lines``: rows of steps, then of workers, each with ``where``, ``kind``, ``place``, ``time_ns`` (mean of a step or
    batch), ``low_ns``, ``high_ns`` and ``share_ratio`` of it. ``longer``: rows of ranks that certainly spend longer in
    a function than the others, with ``rank``, ``kind``, ``place``, ``time_ns`` (what it is longer) and its bounds.
    """
    found: list[dict[str, Any]] = [
        {
            "where": where,
            "kind": line.kind,
            "place": line.place_and_leaf,
            "time_ns": line.time_ns,
            "low_ns": line.low_ns,
            "high_ns": line.high_ns,
            "share_ratio": line.time_ns / max(whole_ns, 1),
        }
        for where, count in ((STEP, POLICY.step_lines_count), (WORKER, POLICY.worker_lines_count))
        for line, whole_ns in costliest_rows(trace, where, count)
    ]
    found = [row for row in found if row["share_ratio"] >= POLICY.line_ratio]
    if not found:
        return None
    longer = [
        {
            "rank": rank,
            "kind": line.kind,
            "place": line.place_and_leaf,
            "time_ns": row["longer_ns"],
            "low_ns": row["low_ns"],
            "high_ns": row["high_ns"],
        }
        for rank in trace.ranks.tolist()
        for row, line in longer_lines(trace, rank, POLICY.longer_rank_lines_count)
    ]
    return {"lines": found, "longer": sorted(longer, key=lambda row: -row["low_ns"])[: POLICY.step_lines_count]}


_ROW, _HEIGHT = 20, 19
#: Part of the picture's width from which on a box has 40 pixels or more in a window of 400, 680 and 1000 pixels.
_TEXT_CLASSES = ((0.11, "t0"), (0.062, "t1"), (0.042, "t2"))
_MakeRow: TypeAlias = Callable[[dict[str, Any]], tuple[str, ...]]


def flames_part(facts: dict[str, Any]) -> list[Block | None]:
    flames = facts["flames"]
    if not flames:
        return []
    groups = [_group(group, facts["budget"]["groups"]) for group in flames["groups"] if group["boxes"]]
    more = groups[POLICY.open_graphs_count :]
    drawn = [
        paragraph(
            "The width of a box is its part of the mean counted step. The first row has the kinds of time; under each"
            " stand your functions in which it was spent, every one below its caller, and last, pale, what they called"
            " in a library. Empty room below a function is time in its own lines; below a kind, time without a sample."
        ),
        *groups[: POLICY.open_graphs_count],
        unfolding(f"{len(more)} more groups of ranks" if len(more) > 1 else "The other ranks", *more) if more else "",
        *_difference_lines(flames["difference"]),
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
            f"Boxes below 0.2 % of the width or more than {POLICY.drawn_depth_count} calls deep are not drawn.",
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
    return [blocks.Table("", head, rows, (0, 1)), Listing(longer), Paragraph(said), Command(command, "All")]


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


def _difference_lines(found: dict[str, Any] | None) -> list[str]:
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
        said = f"{lead} No function differs by more than the error of the samples."
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
    least_ns = sorted((box["length_ns"] for box in boxes), reverse=True)[: POLICY.table_rows_count][-1]
    rows = [make(box) for box in boxes if box["length_ns"] >= least_ns][: POLICY.table_rows_count]
    more = f"; {len(boxes) - len(rows)} shorter ones are left out" if len(boxes) > len(rows) else ""
    head = ("function", "kind", *columns)
    shown = blocks.Table(f"Boxes of the picture, each above those that it calls{more}", head, rows, (0, 1))
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
        about = _about(box, whole, graph["whole_ns"]) if ranks is None else _compared(box, ranks)
        shown = next((name for least, name in _TEXT_CLASSES if share >= least), None)
        words = _name(box, kinds)
        parts.append(
            tag(
                "svg",
                tag("title", text(f"{words}{'' if box['depth'] == 0 else ', ' + kinds.get(box['kind'], '')}: {about}"))
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
    if ranks is None:
        return f"k-{box['kind']}"
    return "k-longer" if box["slow_ns"] > box["other_ns"] else "k-shorter"


def _about(box: dict[str, Any], whole: str, whole_ns: int) -> str:
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
