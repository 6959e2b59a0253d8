"""Stacks of the user's functions: in which of them each kind of time was spent, as a tree for a picture.

    node of a kind      0 other -- 1 <module> -- 2 main -- 3 hook -- 4 time sleep, a call of a library
    its time_ns         23 ms      23 ms         22 ms     20 ms     20 ms

A node is a function below its callers. Frames of libraries between functions of the user are left out, and what the
innermost of these calls in a library is one node more. Times are those of ``lines``, each with all that is below it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.lines.lines import divide
from stashtrace.analysis.lines.place_times import times_at
from stashtrace.analysis.lines.user_frames import OURS, USERS, Places, callers_of, innermost_wanted, leaf_codes, owners
from stashtrace.calibration.noise import wilson
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK, Column, schema
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, cached_on_trace

FLAMES = schema(
    "flames",
    "Functions of the user below their callers, by kind of time; a parent's time holds that of its children",
    RANK,
    col.word("where", "step, or worker (making batches for counted steps)"),
    col.word("step_kind", "steps.kind; empty unless where is step", detail=4),
    col.word("kind", "StallKind in lower case"),
    col.identity("node_id", "function below its callers, the same on all ranks; 0 is the kind itself"),
    col.identity("parent_id", "node_id of the caller, -1 of the kind itself", missing=-1),
    col.text("function_code", "qualified name; empty of the kind itself and of a call of a library"),
    Column("path_code", "i8", "", "its file", role="path"),
    col.number("line", "where most of this time was, -1 if unknown", missing=-1),
    col.text("leaf_code", "call of a library; empty of the user's functions"),
    col.ns("time_ns", "mean of a counted step; of a worker, of a batch"),
    col.ns("low_ns", "not less than this, with 95 % confidence"),
    col.ns("high_ns", "not more than this"),
    col.number("samples_count", "samples that say so, beyond the long calls", detail=3),
    col.number("windows_count", "steps or batches that time_ns is the mean of", detail=2),
)


@dataclass(frozen=True, slots=True)
class _Tree:
    """Functions and lines below their callers, by number."""

    #: Number of the caller; -1 of an outermost one.
    parent: Int64
    #: Number of the function below its callers, whatever the lines.
    function: Int64
    #: Each number as a place, so that time is divided among them as among lines.
    places: Places


@cached_on_trace
def flames(trace: Trace) -> Table:
    """List the functions of the user below their callers, by rank and kind; without stacks there are no rows.

    Raises MissingDataError if stacks were recorded, but no rank has steps.
    """
    if not len(trace.stack_samples) and not len(trace.stack_spans):
        return Table.empty(FLAMES)
    tree = _tree_of(trace)
    times = times_at(trace, tree.places, with_start=False)
    found = divide(times, times.rank)
    kinds = GroupBy(*(found[name] for name in ("rank", "where_number", "step_kind", "kind")))
    time_ns, count = found["time_ns"], found["samples_count"]
    exact_ns = int64(np.rint(found["exact_ratio"] * time_ns))
    samples, rest_ns = kinds.sum(count), kinds.sum(time_ns - exact_ns, count > 0)
    row, node = _with_callers(found["line_number"], tree.parent)
    by_line = GroupBy(kinds.number[row], np.append(tree.function, -1)[node], node)
    sums = by_line.sum(np.column_stack([time_ns, exact_ns, count])[row])
    by_function = GroupBy(*by_line.keys[:2])
    kind, function = by_function.keys
    longest = by_line.keys[2][by_function.argmax(sums[:, 0])]
    time_ns, exact_ns, count = by_function.sum(sums).T
    share_low, share_high = wilson(count, samples[kind])
    first = kinds.first[kind]
    caller = np.append(tree.function, -1)[np.append(tree.parent, -1)[longest]]
    texts = {name: np.append(getattr(tree.places, name), 0)[longest] for name in ("function_code", "path_code")}
    made = Table(
        FLAMES,
        {
            **{name: found[name][first] for name in ("rank", "where", "step_kind", "kind", "windows_count")},
            **texts,
            "node_id": function + 1,
            "parent_id": np.where(function < 0, -1, caller + 1),
            "line": np.append(tree.places.line, -1)[longest],
            "leaf_code": np.append(tree.places.leaf_code, 0)[longest],
            "time_ns": time_ns,
            "low_ns": np.minimum(exact_ns + int64(rest_ns[kind] * share_low), time_ns),
            "high_ns": np.maximum(exact_ns + int64(np.ceil(rest_ns[kind] * share_high)), time_ns),
            "samples_count": count,
        },
    )
    return made.take(order_by(made["rank"], found["where_number"][first], made["step_kind"], kind, made["node_id"]))


def _with_callers(node: Int64, parent: Int64) -> tuple[Int64, Int64]:
    """Return pairs of a row and each node that it counts for: its own, all callers of it, and -1 for the kind."""
    row = np.arange(len(node))
    rows, nodes = [row], [np.full(len(row), -1)]
    while (node >= 0).any():
        row, node = row[node >= 0], node[node >= 0]
        rows.append(row)
        nodes.append(node)
        node = parent[node]
    return int64(np.concatenate(rows)), int64(np.concatenate(nodes))


def _tree_of(trace: Trace) -> _Tree:
    """Put the functions of the user below their callers, and below these the calls of libraries."""
    frames, whose = trace.frames, owners(trace)
    by_key, caller = callers_of(trace)
    innermost, user = innermost_wanted(whose != OURS, caller), innermost_wanted(whose == USERS, caller)
    made = _Nodes(len(frames))
    above = np.append(user, -1)[caller]
    left, level = np.flatnonzero(whose == USERS), above < 0
    while (now := left[level[left]]).size:
        keys = [frames[name][now] for name in ("name_code", "path_code", "first_line", "line")]
        made.add(now, np.append(made.of_frame, -1)[above[now]], *keys, 0 * now)
        left = left[~level[left]]
        level = np.append(made.of_frame, -1)[above] >= 0
    # Stacks of a circle of frames have no outermost one: they are left unknown.
    calls = np.flatnonzero((innermost >= 0) & (innermost != user) & ((user < 0) | (made.of_frame[user] >= 0)))
    leaf = innermost[calls]
    keys = [0 * leaf, frames["path_code"][leaf], 0 * leaf, 0 * leaf - 1, leaf_codes(trace, leaf)]
    of_user = np.append(made.of_frame, -1)[user]
    made.of_frame = of_user
    made.add(calls, of_user[calls], *keys)
    function, path, line, leaf_code = made.columns
    number, is_users = np.arange(len(made.parent)), (leaf_code == 0) | (int64(made.parent) >= 0)
    none = np.full(len(function), -1, dtype=np.int64)
    places = Places(function, path, line, leaf_code, number, none, none, is_users, by_key, made.of_frame)
    return _Tree(made.parent, made.function, places)


class _Nodes:
    """Nodes of a tree, added level by level."""

    def __init__(self, frames_count: int) -> None:
        self.of_frame = np.full(frames_count, -1)
        self.parent = self.function = int64([])
        #: name, path, line and call of a library
        self.columns = [int64([])] * 4
        self._functions_count = 0

    def add(self, row: Int64, parent: Int64, *keys: Int64) -> None:
        """Add a node for each distinct one among some frames; ``keys``: name, path, first line, line, leaf."""
        nodes = GroupBy(parent, *keys)
        above, name, path, first_line, line, leaf = nodes.keys
        functions = GroupBy(np.append(self.function, -1)[above], name, path, first_line, leaf)
        self.of_frame[row] = len(self.parent) + nodes.number
        self.parent = int64(np.append(self.parent, above))
        self.function = int64(np.append(self.function, self._functions_count + functions.number))
        self._functions_count += len(functions)
        self.columns = [int64(np.append(*pair)) for pair in zip(self.columns, (name, path, line, leaf), strict=True)]


def unseen_share(samples_count: int) -> float:
    """Return the share that a function may have, with 95 % confidence, of which no sample was taken."""
    return float(wilson(int64([0]), int64([samples_count]))[1][0])
