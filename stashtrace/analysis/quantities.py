"""Sizes, times and rates as a person states them in options of analyses: 100G, 80us, 2GB/s."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import re

from stashtrace.errors import UsageError

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-zA-Z]*)\s*", re.IGNORECASE)
_PREFIXES = ("", "k", "m", "g", "t", "p")
_TIMES_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def bytes_of(stated: str | float, what: str) -> int:
    """Size in bytes; KB and K are 1000, KiB is 1024.

    Examples
    --------
    >>> bytes_of("100G", "size"), bytes_of("4KiB", "size"), bytes_of(4096, "size")
    (100000000000, 4096, 4096)
    """
    if not isinstance(stated, str):
        return _sensible(float(stated), stated, what, "100G, 512MiB, 4096")
    number, unit = _divided(stated, what, "100G, 512MiB, 4096")
    name = unit.lower().removesuffix("b")
    base = 1024 if name.endswith("i") and len(name) > 1 else 1000
    name = name.removesuffix("i")
    if name not in _PREFIXES:
        raise _not_understood(stated, what, "100G, 512MiB, 4096")
    return _sensible(number * base ** _PREFIXES.index(name), stated, what, "100G, 512MiB, 4096")


def bytes_per_s_of(stated: str | float, what: str) -> float:
    """Bytes per second; the ``/s`` may be left out.

    Examples
    --------
    >>> bytes_per_s_of("2GB/s", "bandwidth")
    2000000000.0
    """
    return float(bytes_of(stated.strip().removesuffix("/s") if isinstance(stated, str) else stated, what))


def ns_of(stated: str | float, what: str) -> float:
    """Nanoseconds; a number without unit is some already.

    Examples
    --------
    >>> ns_of("80us", "latency"), ns_of(80_000, "latency")
    (80000.0, 80000.0)
    """
    if not isinstance(stated, str):
        return float(stated)
    number, unit = _divided(stated, what, "80us, 4ms")
    if unit not in _TIMES_NS:
        raise _not_understood(stated, what, "80us, 4ms")
    return number * _TIMES_NS[unit]


def _divided(stated: str, what: str, forms: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(stated)
    if match is None:
        raise _not_understood(stated, what, forms)
    return float(match[1]), match[2]


def _sensible(value: float, stated: object, what: str, forms: str) -> int:
    if not math.isfinite(value) or value < 1:
        raise _not_understood(stated, what, forms)
    return round(value)


def _not_understood(stated: object, what: str, forms: str) -> UsageError:
    return UsageError(f"{what} {stated!r} is not understood", hint=f"as in {forms}")
