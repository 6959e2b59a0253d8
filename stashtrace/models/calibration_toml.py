"""Text of a calibration file. TOML with the few kinds of values that the format has; read back by ``calibration``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from stashtrace.models.calibration import FORMAT_VERSION, Calibration, Link

_HEAD = (
    "# What the links of one machine can do, measured by `stashtrace calibrate`.",
    "# time = alpha + bytes * beta; errors are standard errors. Format: docs/reference/calibration.md",
)
_LINE = 100


def calibration_text(calibration: Calibration) -> str:
    """The whole file."""
    out = [*_HEAD, f"version = {FORMAT_VERSION}"]
    out += _entries({"date": calibration.date, "command": calibration.command})
    out += ["", "[machine]", *_entries(calibration.machine), "", "[versions]", *_entries(calibration.versions)]
    if calibration.left_out:
        out += ["", "[left_out]", *_entries(calibration.left_out)]
    for link in calibration.links:
        out += ["", "[[link]]", *_link(link)]
    return "\n".join(out) + "\n"


def _link(link: Link) -> list[str]:
    fit, points = link.fit, link.points
    facts: dict[str, Any] = {
        "kind": link.kind, "backend": link.backend, "op": link.op, "ranks_count": link.ranks_count,
        "alpha_ns": fit.alpha_ns, "alpha_error_ns": fit.alpha_error_ns,
    }  # fmt: skip
    if math.isfinite(fit.bandwidth_bytes_per_s):
        facts["bandwidth_bytes_per_s"] = fit.bandwidth_bytes_per_s
        facts["bandwidth_error_bytes_per_s"] = fit.bandwidth_error_bytes_per_s
    facts |= {
        "sizes_bytes": points.sizes_bytes, "median_ns": points.median_ns, "low_ns": points.low_ns,
        "high_ns": points.high_ns, "repetitions_count": points.repetitions_count,
    }  # fmt: skip
    out = _entries(facts)
    for piece in fit.pieces:
        out += ["", "[[link.piece]]"]
        out += _entries({name: getattr(piece, name) for name in piece.__slots__})
    return out


def _entries(values: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in values.items()]


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _array([_value(v) for v in value])
    return _text(str(value))


def _float(value: float) -> str:
    """Seven significant digits: more than any measurement has."""
    short = f"{value:.7g}"
    if short.lstrip("-").isdigit():
        return short + ".0"
    return short.replace("e+", "e")


def _array(parts: list[str]) -> str:
    """In one line if it fits, else in lines of some length."""
    flat = "[" + ", ".join(parts) + "]"
    if len(flat) <= _LINE:
        return flat
    lines, line = [], "  "
    for part in parts:
        if len(line) + len(part) > _LINE:
            lines.append(line.rstrip())
            line = "  "
        line += part + ", "
    return "[\n" + "\n".join([*lines, line.rstrip()]) + "\n]"


def _text(value: str) -> str:
    # A TOML basic string is a JSON string, but for the one control character that JSON leaves alone.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
