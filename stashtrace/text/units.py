"""Numbers as people read and write them: in reports and tables, in sentences, and in options of analyses."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stashtrace.errors import UsageError
from stashtrace.text.prose import count_noun

_TIME_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"))
_BYTE_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB"))


def duration_text(ns: float) -> str:
    """Time with three digits at most.

    Examples
    --------
    >>> duration_text(184_200_000), duration_text(1_840_000), duration_text(950), duration_text(95e9)
    ('184 ms', '1.84 ms', '950 ns', '95.0 s')
    """
    for size, unit in _TIME_UNITS:
        # 999.6 us would be printed as 1000 us.
        if abs(ns) >= size * 0.9995:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{round(ns)} ns"


def span_text(ns: float) -> str:
    """Time of a job: days, hours, minutes and seconds, the two largest.

    Examples
    --------
    >>> span_text(48.2e9), span_text(136e9), span_text(3 * 3600e9 + 62e9), span_text(51 * 3600e9), span_text(400e6)
    ('48 s', '2 min 16 s', '3 h 1 min', '2 d 3 h', '0.4 s')
    """
    seconds = max(ns, 0) / 1e9
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    left, parts = round(seconds), []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        parts.append((count, unit))
    first = next(at for at, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def bytes_text(count: float) -> str:
    """Bytes in powers of ten, three digits at most.

    Examples
    --------
    >>> bytes_text(999), bytes_text(26_214_400), bytes_text(4096)
    ('999 B', '26.2 MB', '4.10 KB')
    """
    for size, unit in _BYTE_UNITS:
        if abs(count) >= size * 0.9995:
            return f"{_three_digits(count / size)} {unit}"
    return f"{round(count)} B"


def percent_text(ratio: float) -> str:
    """A ratio in percent: whole numbers, one decimal below 1 %.

    Examples
    --------
    >>> percent_text(0.614), percent_text(0.0097), percent_text(0.004), percent_text(0.0), percent_text(0.0001)
    ('61 %', '1 %', '0.4 %', '0 %', '<0.1 %')
    """
    percent = ratio * 100
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.05:
        return "<0.1 %"
    return f"{percent:.1f} %" if abs(percent) < 0.95 else f"{percent:.0f} %"


def shortened(text: str, width: int) -> str:
    """Text with its middle cut out where it is longer than ``width``; a place in brackets at its end stays whole.

    Examples
    --------
    >>> shortened("void at::native::reduce_kernel<512, 1>(...)", 24), shortened("gemm", 24)
    ('void at::native::…>(...)', 'gemm')
    >>> shortened("torch.compile Tagger.forward (train.py:24)", 32)
    'torch.compile Tag… (train.py:24)'
    """
    if len(text) <= width:
        return text
    tail, place = width // 4, text.rfind(" (")
    if place > 0 and text.endswith(")") and len(text) - place <= width // 2:
        tail = len(text) - place
    return f"{text[: width - tail - 1]}…{text[len(text) - tail :]}"


def path_text(path: str, width: int = 48) -> str:
    """Shorten a path: folders are cut before the name of the file. Some tools give a number instead."""
    if not path:
        return "(path not known)"
    if path.isdecimal():
        return f"file number {path} (its path is not in the recording)"
    folder, _, base = path.rpartition("/")
    if len(path) <= width or len(base) > width - 8:
        return shortened(path, width)
    return f"{folder[: width - len(base) - 2]}…/{base}"


def ranks_text(ranks: list[int]) -> str:
    """Ascending ranks with runs of three and more folded.

    Examples
    --------
    >>> ranks_text([0, 1, 2, 5, 7, 8]), ranks_text([0, 1])
    ('0-2,5,7,8', '0,1')
    """
    parts: list[str] = []
    position = 0
    while position < len(ranks):
        end = position
        while end + 1 < len(ranks) and ranks[end + 1] == ranks[end] + 1:
            end += 1
        folded = end - position > 1
        parts += [f"{ranks[position]}-{ranks[end]}"] if folded else map(str, ranks[position : end + 1])
        position = end + 1
    return ",".join(parts)


def ranks_named(ranks: Sequence[int]) -> str:
    """Return ranks with their noun: ``ranks 0,1``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(list(ranks))}"


def ranks_in(text: str) -> list[int]:
    """Ranks that :func:`ranks_text` wrote.

    Examples
    --------
    >>> ranks_in("0-2,5"), ranks_in("")
    ([0, 1, 2, 5], [])
    """
    ranks: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def is_several(value: object) -> bool:
    """Whether a count is not printed as one, or a list such as ``0-2,5`` has several ranks."""
    if isinstance(value, str):
        return "," in value or "-" in value
    return number(value) != "1" if isinstance(value, float) else value != 1


#: Characters of a list of ranks that is still read with ease.
_LONG_RANKS = 40


def few_ranks(ranks: str) -> str:
    """Cut a list of ranks that is too long to read: ``0, 2, 4 … 1022``."""
    if len(ranks) <= _LONG_RANKS:
        return ranks
    named = ranks.split(",")
    return f"{', '.join(named[:3])} … {named[-1]}"


def named_ranks(ranks: str, count: int) -> str:
    """Name ranks, many of them by their number: ``rank 3``, ``ranks 0-3``, ``512 ranks (0, 2, 4 … 1022)``."""
    few = few_ranks(ranks)
    return f"rank{'s' if count > 1 else ''} {ranks}" if few == ranks else f"{count_noun(count, 'rank')} ({few})"


def operation(name: str) -> str:
    """Return the name of a collective as people write it: ``all-reduce`` for ``all_reduce``."""
    return name.replace("_", "-")


def number(value: float) -> str:
    """Print a mean count with two digits, whole from 10 on."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def part_text(ratio: float) -> str:
    """Print a part: ``all``, or its percentage.

    Examples
    --------
    >>> part_text(0.997), part_text(0.66)
    ('all', '66 %')
    """
    return "all" if ratio > 0.995 else percent_text(ratio)


_WORDS: dict[str, Callable[[Any], str]] = {
    "": str,
    "time": duration_text,
    "percent": percent_text,
    "part": part_text,
    "number": number,
    "bytes": bytes_text,
    "count": lambda count: f"{count:,}",
    "ranks": lambda ranks: f"rank{'s' if is_several(ranks) else ''} {ranks}",
    "operation": operation,
    "short": lambda name: shortened(name, 40),
    "path": path_text,
}


class _Filler(string.Formatter):
    def format_field(self, value: Any, spec: str) -> str:
        one, alternative, several = spec.partition("|")
        if alternative:
            if hasattr(value, "verb"):  # ranks of a stall, which may be nothing
                return str(value.verb(one, several))
            return several if is_several(value) else one
        return _WORDS[spec](value) if spec in _WORDS else count_noun(value, spec)


def filled(template: str, facts: Mapping[str, Any]) -> str:
    """Fill the template of a sentence with named facts.

    What stands behind a colon says how: a unit (``time``, ``percent``, ``part``, ``bytes``, ``number``, ``count``),
    ``ranks``, ``operation``, ``short``, ``path``, two words of which a count or a list of ranks takes one, or a noun to
    count.

    Examples
    --------
    >>> facts = {"ranks": "1,3", "wait_ns": 20e6, "wait_ratio": 0.35, "steps_count": 1}
    >>> filled("{ranks:ranks} {ranks:waits|wait} {wait_ns:time} ({wait_ratio:percent}) in {steps_count:step}", facts)
    'ranks 1,3 wait 20.0 ms (35 %) in 1 step'
    """
    return _Filler().vformat(template, (), facts)


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


# Sizes, times and rates in options of analyses: 100G, 80us, 2GB/s. ``subject`` names the option in errors.

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-zA-Z]*)\s*", re.IGNORECASE)
_PREFIXES = ("", "k", "m", "g", "t", "p")
#: Forms of a size, for hints.
_SIZES = "100G, 512MiB, 4096"
TIMES_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def bytes_of(stated: str | float, subject: str) -> int:
    """Size in bytes; KB and K are 1000, KiB is 1024.

    Examples
    --------
    >>> bytes_of("100G", "size"), bytes_of("4KiB", "size"), bytes_of(4096, "size")
    (100000000000, 4096, 4096)
    """
    if not isinstance(stated, str):
        return _whole_number(float(stated), stated, subject)
    number, unit = _number_and_unit(stated, subject, _SIZES)
    name = unit.lower().removesuffix("b")
    base = 1024 if name.endswith("i") and len(name) > 1 else 1000
    name = name.removesuffix("i")
    if name not in _PREFIXES:
        raise _not_understood(stated, subject, _SIZES)
    return _whole_number(number * base ** _PREFIXES.index(name), stated, subject)


def bytes_per_s_of(stated: str | float, subject: str) -> float:
    """Bytes per second; the ``/s`` may be left out.

    Examples
    --------
    >>> bytes_per_s_of("2GB/s", "bandwidth")
    2000000000.0
    """
    return float(bytes_of(stated.strip().removesuffix("/s") if isinstance(stated, str) else stated, subject))


def ns_of(stated: str | float, subject: str) -> float:
    """Nanoseconds of a time with a unit; a number is taken as nanoseconds.

    Examples
    --------
    >>> ns_of("80us", "latency"), ns_of(80_000, "latency")
    (80000.0, 80000.0)
    """
    if not isinstance(stated, str):
        return float(stated)
    number, unit = _number_and_unit(stated, subject, "80us, 4ms")
    if unit not in TIMES_NS:
        raise _not_understood(stated, subject, "80us, 4ms")
    return number * TIMES_NS[unit]


def _number_and_unit(stated: str, subject: str, forms: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(stated)
    if match is None:
        raise _not_understood(stated, subject, forms)
    return float(match[1]), match[2]


def _whole_number(value: float, stated: object, subject: str) -> int:
    if not math.isfinite(value) or value < 1:
        raise _not_understood(stated, subject, _SIZES)
    return round(value)


def _not_understood(stated: object, subject: str, forms: str) -> UsageError:
    return UsageError(f"{subject} {stated!r} is not understood", hint=f"as in {forms}")


def range_text(low: str, high: str) -> str:
    """Write a range as in ``2 to 3 ms``; a unit that both ends have stands once."""
    if low == high:
        return high
    number, _, unit = low.rpartition(" ")
    return f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"
