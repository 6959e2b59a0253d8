"""Readers of option values: ``20G``, ``6h``, ``10:20``, ``0,2,8-15``.

:func:`stashtrace.cli.parsing.add_value` gives an option a reader. Text that it cannot read is a UsageError with an
example.
"""

from __future__ import annotations

import math
import re

from stashtrace.errors import UsageError

_BYTES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_HOURS = {"d": 24.0, "h": 1.0, "m": 1 / 60, "s": 1 / 3600}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
#: Step of a range of cached percents that names none.
_PERCENT_STEP = 10.0
#: Ends of ranges that name none.
_LAST_STEP, _LAST_SECOND = 2**31, 1e9


def read_size(text: str, option: str) -> int:
    """Bytes of ``20G``, in powers of ten, or of ``20GiB``.

    Examples
    --------
    >>> read_size("20G", "--cache-size"), read_size("1KiB", "--cache-size")
    (20000000000, 1024)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.I)
    if match is None:
        raise refusal(option, text, "a size", "20G")
    number, unit, binary = match.groups()
    return round(float(number) * (_BINARY_BYTES if binary else _BYTES)[unit.upper()])


def read_message_sizes(text: str, option: str = "--sizes") -> tuple[int, int]:
    """Smallest and largest message of ``1K:32M`` in bytes, in powers of two.

    Examples
    --------
    >>> read_message_sizes("512:1K")
    (512, 1024)
    """
    match = re.fullmatch(r"(\d+)([KMG]?)i?B?:(\d+)([KMG]?)i?B?", text.strip(), re.I)
    if match is None:
        raise refusal(option, text, "a range of sizes", "1K:32M")
    low, low_unit, high, high_unit = match.groups()
    return int(low) * _BINARY_BYTES[low_unit.upper()], int(high) * _BINARY_BYTES[high_unit.upper()]


def read_whole(text: str, option: str, least: int = 1, why: str = "") -> int:
    """A whole number of at least ``least``; ``why``: the reason for that limit, where a reader would ask."""
    is_whole = re.fullmatch(r"[+-]?\d{1,18}", text) is not None
    if is_whole and int(text) >= least:
        return int(text)
    if is_whole and why:
        raise UsageError(f"{option} {text} is too few: {why}", hint=f"{option} {least}, or more")
    raise refusal(option, text, f"a whole number of at least {least}", str(max(least, 1)))


def read_names(text: str, option: str) -> tuple[str, ...]:
    """Names with commas between them.

    Examples
    --------
    >>> read_names("rank,stall_ns", "--columns")
    ('rank', 'stall_ns')
    """
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise refusal(option, text, "a list of names", "rank,step")
    return names


def read_wholes(text: str, option: str) -> tuple[int, ...]:
    """Positive whole numbers with commas between them: ``1,2,4``."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise refusal(option, text, "a list of positive whole numbers", "2,4,8")
    return tuple(int(part) for part in text.split(","))


def read_length(text: str, option: str) -> float:
    """A length of time in the unit that the option is in: a number of at least 0."""
    return _number(text, option, text, "a length of time", "1.5")


def read_percent(text: str, option: str) -> float:
    """A number of percent of at least 0: ``2``, ``2.5%``.

    Examples
    --------
    >>> read_percent("2.5%", "--allowance")
    2.5
    """
    return _number(text.strip().removesuffix("%"), option, text, "a number of percent", "2.5")


def read_count(text: str, option: str) -> float:
    """A positive number of things: ``1281167``, ``1.28M``.

    Examples
    --------
    >>> read_count("1.28M", "--samples"), read_count("500", "--iterations")
    (1280000.0, 500.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)([kmg]?)", text.strip().lower())
    count = float(match[1]) * _COUNTS[match[2]] if match else 0.0
    if not 0 < count < math.inf:
        raise refusal(option, text, "a positive number", "1281167, or 1.28M")
    return count


def read_hours(text: str, option: str = "--time-budget") -> float:
    """Hours of ``1d12h``, ``6h``, ``30m``, ``1.5h``.

    Examples
    --------
    >>> read_hours("1d12h"), read_hours("30m"), read_hours("1h 30m")
    (36.0, 0.5, 1.5)
    """
    compact = re.sub(r"\s+", "", text.lower())
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", compact)
    hours = sum(float(number) * _HOURS[unit] for number, unit in parts)
    units = [unit for _, unit in parts]
    whole = "".join(number + unit for number, unit in parts) == compact
    if not parts or not whole or units != sorted(set(units), key="dhms".index) or not 0 < hours < math.inf:
        raise refusal(option, text, "a time", "6h, or 1d12h")
    return hours


def read_money(text: str, option: str = "--cost-budget") -> float:
    """A sum of money, in the currency of the prices."""
    return _number(text, option, text, "a sum of money", "50")


def read_price(text: str, option: str = "--price") -> tuple[str, float]:
    """Name and price of ``p3.8xlarge=9.50``.

    Examples
    --------
    >>> read_price("p3.8xlarge=9.50")
    ('p3.8xlarge', 9.5)
    """
    name, _, value = text.rpartition("=")
    return name.strip(), _number(value if name else "", option, text, "a price", "p3.8xlarge=9.50")


def read_configurations(text: str, option: str = "--steps") -> tuple[int, ...]:
    """Some of the five configurations of ``characterize``: ``1,2,5``.

    Examples
    --------
    >>> read_configurations("2,1")
    (1, 2)
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or any(word not in ("1", "2", "3", "4", "5") for word in words):
        raise refusal(option, text, "a list of numbers from 1 to 5", "1,2,3,4")
    return tuple(sorted({int(word) for word in words}))


def read_shares(text: str, option: str = "--cached") -> list[float]:
    """Cached shares (0 to 1) of ``A:B:STEP`` or ``A``, in percent.

    Examples
    --------
    >>> read_shares("0:100:50"), read_shares("35")
    ([0.0, 0.5, 1.0], [0.35])
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?)?", text.strip().replace("%", ""))
    low, high, step = (float(part) if part else None for part in match.groups()) if match else (None, None, None)
    high, step = low if high is None else high, _PERCENT_STEP if step is None else step
    if low is None or high is None or not 0 <= low <= high <= 100 or not step > 0:
        raise refusal(option, text, "a range of percents", "0:100:10")
    count = math.floor((high - low) / step + 1e-9)
    shares = [low + step * i for i in range(count + 1)]
    if shares[-1] < high:
        shares.append(high)
    return [min(share / 100, 1.0) for share in shares]


def read_ranks(text: str, option: str = "--ranks") -> list[int]:
    """Ranks of ``0,2,8-15``.

    Examples
    --------
    >>> read_ranks("0,2,8-10")
    [0, 2, 8, 9, 10]
    """
    ranks: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            ranks += range(int(first), int(last if dash else first) + 1)
    except ValueError as error:
        raise refusal(option, text, "a list of ranks", "0,2,8-15") from error
    return ranks


def read_steps(text: str, option: str = "--steps") -> tuple[int, int]:
    """First step and the one after the last of ``A:B``; an end that is left out is open.

    Examples
    --------
    >>> read_steps("10:20")
    (10, 20)
    """
    try:
        first, last = text.split(":")
        steps = int(first or 0), int(last or _LAST_STEP)
    except ValueError:
        steps = (0, 0)
    if steps[0] >= steps[1]:
        raise refusal(option, text, "a range A:B with A < B", "10:20")
    return steps


def read_window(text: str, option: str = "--window") -> tuple[int, int]:
    """Begin and end in nanoseconds of ``A:B`` in seconds; an end that is left out is open.

    Examples
    --------
    >>> read_window("1.5:4")
    (1500000000, 4000000000)
    """
    try:
        first, last = text.split(":")
        window = round(float(first or 0) * 1e9), round(float(last or _LAST_SECOND) * 1e9)
    except (ValueError, OverflowError):
        window = (0, 0)
    if window[0] >= window[1]:
        raise refusal(option, text, "a range A:B with A < B", "1.5:4")
    return window


def _number(number: str, option: str, text: str, kind: str, example: str) -> float:
    """Return a finite number of at least 0; ``text`` is the whole value of the option."""
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise refusal(option, text, kind, example)
    return value


def refusal(option: str, text: str, kind: str, example: str) -> UsageError:
    """Return the error of a value that an option does not take."""
    return UsageError(f"{option} {text} is not {kind}", hint=f"for example {option} {example}")


def read_trackers(text: str | None) -> list[str]:
    """Return the names of a comma list. Raises UsageError for a tracker that is unknown or not installed."""
    names = list(dict.fromkeys((text or "").split(","))) if text is not None else []
    if names:
        from stashtrace.trackers.writers import check_trackers

        check_trackers(names)
    return names
