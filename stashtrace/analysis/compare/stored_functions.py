"""The user's functions in a baseline: the costliest of each kind, some kilobytes whatever the length of the run.

A run with 1,024 ranks and 13 kinds stores 13 groups of 20 functions, about 100 bytes each. What single ranks did is
left out, and so is which functions stood in a stack: beside a baseline none is called new or gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stashtrace.analysis.compare.function_times import (
    ALL_RANKS,
    IN_STEP,
    IN_WORKER,
    FunctionGroup,
    FunctionsOfRun,
    FunctionTime,
    LineTime,
)
from stashtrace.calibration.checked_files import CheckedFile, is_number
from stashtrace.schema.stall_kinds import KIND_NAMES
from stashtrace.scrubbing import scrub_arguments

#: Last parts of a path that are kept: enough to tell files of one name apart, and no folder of a user.
_KEPT_PARTS = 3
_GROUP = ("unknown_ns", "sample_ns", "degrees")
_FUNCTION = ("mean_ns", "error_ns", "degrees")


def functions_as_json(functions: FunctionsOfRun | None) -> dict[str, Any] | None:
    """Return the functions of a run as a baseline stores them."""
    if functions is None:
        return None
    kept = functions.condensed()
    return {
        "length_ns": {where: round(length) for where, length in kept.length_ns.items()},
        "groups": [
            {
                "where": group.where,
                "kind": group.kind,
                **{name: _rounded(getattr(group, name)) for name in _GROUP},
                "functions": [_function_as_json(one) for one in group.functions],
            }
            for group in kept.groups
        ],
    }


def read_functions(content: Any, file: CheckedFile) -> FunctionsOfRun | None:
    """Return the functions of a stored run; None where it has none, as in older baselines."""
    if content is None:
        return None
    file.require(isinstance(content, dict), "functions", content, ", no table")
    length_ns = {where: _amount(value, where, file) for where, value in file.table(content, "length_ns").items()}
    file.require(IN_STEP in length_ns and not set(length_ns) - {IN_STEP, IN_WORKER}, "length_ns", length_ns)
    groups = _list(content, "groups", file)
    return FunctionsOfRun(tuple(_group(one, file) for one in groups), length_ns)


def _function_as_json(one: FunctionTime) -> dict[str, Any]:
    return {
        "function": one.function,
        "path": scrub_arguments(["/".join(one.path.split("/")[-_KEPT_PARTS:])])[0],
        **{name: _rounded(getattr(one, name)) for name in _FUNCTION},
        "lines": [[line.line, line.leaf, round(line.time_ns)] for line in one.lines],
    }


def _rounded(value: float) -> float:
    return round(value, 1)


def _group(content: Any, file: CheckedFile) -> FunctionGroup:
    file.require(isinstance(content, dict), "a group of functions", content)
    where, kind = file.text(content, "where"), file.text(content, "kind")
    file.require(where in (IN_STEP, IN_WORKER) and kind in KIND_NAMES, "a group of functions", [where, kind])
    amounts = [_amount(content.get(name), name, file) for name in _GROUP]
    functions = tuple(_function(one, file) for one in _list(content, "functions", file))
    return FunctionGroup(where, kind, ALL_RANKS, amounts[0], amounts[1], max(amounts[2], 1.0), functions)


def _function(content: Any, file: CheckedFile) -> FunctionTime:
    file.require(isinstance(content, dict), "a function", content)
    mean, error, degrees = (_amount(content.get(name), name, file) for name in _FUNCTION)
    lines = tuple(_line(one, file) for one in _list(content, "lines", file))
    name, path = file.text(content, "function"), file.text(content, "path")
    return FunctionTime(name, path, mean, error, max(degrees, 1.0), lines)


def _line(content: Any, file: CheckedFile) -> LineTime:
    is_line = isinstance(content, list) and len(content) == 3 and isinstance(content[1], str)
    file.require(is_line and isinstance(content[0], int), "a line", content)
    return LineTime(content[0], content[1], _amount(content[2], "a line", file))


def _list(content: Mapping[str, Any], key: str, file: CheckedFile) -> Sequence[Any]:
    value = content.get(key, [])
    file.require(isinstance(value, list), key, value, ", no list")
    return list(value)


def _amount(value: Any, what: str, file: CheckedFile) -> float:
    return float(file.require(is_number(value) and value >= 0, what, value))
