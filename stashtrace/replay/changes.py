"""Changes that a what-if question makes: ``network.bandwidth=x2``, ``workers=8``, ``prep=5ms``, ``bucket_mb=100``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from stashtrace.errors import UsageError
from stashtrace.schema.stall_kinds import COLUMN_OF, COLUMNS, OPTION_WORDS, kinds_of_word, nearest_word, word_text
from stashtrace.text.units import TIMES_NS

#: Times; ``0`` takes one away.
TIMES = (
    *("compute", "launch", "python", "compile", "objects", "h2d", "prep", "fetch", "checkpoint", "other"),
    *("straggler", "slow_worker"),
)
#: Quantities of a link.
_OF_A_LINK = ("bandwidth", "latency")
LINKS = tuple(f"{link}.{what}" for link in COLUMNS["link"] for what in _OF_A_LINK)
COUNTS = ("workers", "ranks")
#: ``persistent_workers`` of DataLoader.
KEPT = "persistent_workers"
#: ``in_order`` of DataLoader.
IN_ORDER = "in_order"
WORDS = {"compression": ("fp16",), KEPT: ("1",), IN_ORDER: ("false",)}
#: Times of which only what some take longer than others can be taken away.
_EXCESS = {"straggler": "lateness", "slow_worker": "what a worker takes longer than the others"}
#: ``bucket_cap_mb`` of DistributedDataParallel: a number of MiB.
BUCKET = "bucket_mb"
QUANTITIES = (*TIMES, *LINKS, *COUNTS, *WORDS)
#: From one byte, which sends each gradient alone, to a size that no device holds.
_BUCKET_RANGE_MIB = (1e-6, 1e6)
_RATE_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_RANGE = {
    **dict.fromkeys(TIMES, "x0.5 (half of it), 5ms, or 0"),
    **{
        link: "x2 (twice as much), 10gbit" if link.endswith("bandwidth") else "x0.5 (half of it), 50us"
        for link in LINKS
    },
    **dict.fromkeys(COUNTS, "8, or x2 (twice as many)"),
}


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    ``quantity``: one of ``QUANTITIES``, or ``BUCKET``. ``factor``: factor of the quantity; 0 takes a time away. For
    ``BUCKET`` the size itself. ``amount``: without a factor: the new value, in ns, in bits a second, or as a number.
    ``text``: the value as it was typed.
    """

    quantity: str
    factor: float | None
    amount: float | None = None
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> Change:
        """Read ``QUANTITY=VALUE``.

        Raises UsageError: for an unknown quantity, or a value that it cannot have.

        >>> Change.parse("in-host.bandwidth=x2").quantity, Change.parse("late=0").quantity
        ('interconnect.bandwidth', 'straggler')
        """
        typed, equals, value = (part.strip() for part in text.partition("="))
        quantity = _quantity_of(typed)
        if equals and quantity == BUCKET:
            return cls(quantity, _size_mib(value))
        if not equals or quantity not in QUANTITIES:
            known = f"quantities that can be changed: {', '.join(map(quantity_words, (*QUANTITIES, BUCKET)))}"
            if not equals:
                raise UsageError(f"{text!r} is not QUANTITY=VALUE, as in network.bandwidth=x2", hint=known)
            raise UsageError(f"cannot change {typed!r}", hint=_hint(typed) or known)
        if quantity in WORDS:
            if value not in WORDS[quantity]:
                raise UsageError(f"{quantity} cannot be {value or 'nothing'}", hint=" or ".join(WORDS[quantity]))
            return cls(quantity, None, None, value)
        if value == "0" and quantity in TIMES:
            return cls(quantity, 0.0, None, value)
        if quantity in _EXCESS:
            raise UsageError(f"{typed}={value}: {_EXCESS[quantity]} can only be taken away", hint=f"{typed}=0")
        number = re.fullmatch(r"x(\d+(?:\.\d*)?|\.\d+)", value)
        if number and 0 < float(number.group(1)) < math.inf:
            return cls(quantity, float(number.group(1)), None, value)
        amount = _amount(quantity, value)
        if amount is None:
            raise UsageError(f"{typed} cannot be {value or 'nothing'}", hint=f"as in {_RANGE[quantity]}")
        return cls(quantity, None, amount, value)

    @classmethod
    def parse_all(cls, text: str) -> tuple[Change, ...]:
        """Read ``QUANTITY=VALUE``, where a column of the summary stands for all of its kinds that can be changed.

        >>> [str(change) for change in Change.parse_all("data=x0.5")]
        ['storage=x0.5', 'prep=x0.5']
        """
        word, equals, value = (part.strip() for part in text.partition("="))
        column, dot, what = word.partition(".")
        parts = _changeable(column, what if dot else "")
        if not equals or column not in COLUMNS or not parts or parts == (word,):
            return (cls.parse(text),)
        changes = tuple(cls.parse(f"{part}={value}") for part in parts)
        if len(parts) > 1 and any(change.amount is not None for change in changes) and not dot:
            raise UsageError(
                f"{text}: {word} is the sum of {' and '.join(map(quantity_words, parts))}, so it takes a factor or 0",
                hint=f"{word}=x0.5, or a time for one of them: {quantity_words(parts[0])}={value}",
            )
        return changes

    def factor_from(self, present: float) -> float:
        """Return the factor of a present amount, which is in the unit of ``amount``."""
        if self.factor is not None:
            return self.factor
        assert self.amount is not None
        return self.amount / present

    @property
    def option(self) -> str:
        """The change with the id of what it changes, for programs."""
        return f"{self.quantity}={self._value}"

    @property
    def _value(self) -> str:
        if self.text:
            return self.text
        if self.quantity == BUCKET:
            return f"{self.factor:g}"
        return "0" if self.factor == 0 else f"x{self.factor:g}"

    def __str__(self) -> str:
        """In the words of the summary; these can be typed too."""
        return f"{quantity_words(self.quantity)}={self._value}"


def of_cause(number: int) -> Change:
    """Return the change that takes a cause of the summary away; its work is known to ``replay.causes`` alone.

    >>> str(of_cause(2))
    'cause=2'
    """
    return Change("cause", None, None, str(number))


def example_of(word: str) -> str:
    """Return a change of a quantity or column, for a hint; empty if the word is none.

    >>> example_of("workers"), example_of("compression"), example_of("data"), example_of("luck")
    ('workers=8', 'compression=fp16', 'data=x0.5', '')
    """
    quantity = _quantity_of(word)
    if quantity in WORDS:
        return f"{word}={WORDS[quantity][0]}"
    if quantity in _EXCESS:
        return f"{word}=0"
    if quantity in COUNTS:
        return f"{word}=8"
    if quantity == BUCKET:
        return f"{word}=50"
    if quantity.endswith(".bandwidth"):
        return f"{word}=x2" if quantity in LINKS else ""
    return f"{word}=x0.5" if quantity in QUANTITIES or _changeable(quantity) else ""


def quantity_words(quantity: str) -> str:
    """Return a quantity in the words that people read and type.

    >>> quantity_words("straggler"), quantity_words("interconnect.latency"), quantity_words("workers")
    ('late', 'in-host.latency', 'workers')
    """
    name, dot, what = quantity.partition(".")
    return f"{OPTION_WORDS.get(name, name)}{dot}{what}"


def _quantity_of(typed: str) -> str:
    """Return the quantity that a word stands for; the word itself if it is another, or stands for several."""
    name, dot, what = typed.partition(".")
    kinds = kinds_of_word(name)
    return f"{kinds[0]}{dot}{what}" if len(kinds) == 1 else typed


def _changeable(column: str, what: str = "") -> tuple[str, ...]:
    """Return the quantities that a column of the summary stands for; ``what`` is that of a link, as in bandwidth."""
    parts = (f"{kind}.{what}" if what else kind for kind in COLUMNS.get(column, ()))
    return tuple(part for part in parts if part in QUANTITIES)


def _hint(word: str) -> str:
    """Return what else to change for a word that is no quantity; empty if nothing is near."""
    known = (*QUANTITIES, BUCKET, *(column for column in COLUMNS if _changeable(column)))
    kinds = kinds_of_word(word)
    column = COLUMN_OF[kinds[0]] if kinds else ""
    if column == "link":
        return f"of a link: {' or '.join(f'{word}.{what}' for what in _OF_A_LINK)}"
    if column and _changeable(column):
        parts = " and ".join(map(quantity_words, _changeable(column)))
        return f"of {column}, {parts} can be changed: {column}=x0.5 changes them together"
    near = nearest_word(word, known)
    return f"did you mean {word_text(near)}?" if near else ""


def _size_mib(text: str) -> float:
    least, most = _BUCKET_RANGE_MIB
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not least <= size <= most:
        raise UsageError(
            f"{BUCKET} cannot be {text or 'nothing'}",
            hint=f"a size in MiB from {least:g} to {most:g}, as in {BUCKET}=100",
        )
    return size


def _amount(quantity: str, value: str) -> float | None:
    """Read a value in ns, in bits a second or as a number; None if it is not one."""
    if quantity in COUNTS:
        return float(value) if re.fullmatch(r"[1-9]\d{0,6}", value) else None
    units = _RATE_BITS if quantity.endswith(".bandwidth") else TIMES_NS
    match = re.fullmatch(rf"(\d+(?:\.\d*)?|\.\d+)\s*({'|'.join(units)})", value)
    amount = float(match.group(1)) * units[match.group(2)] if match else 0.0
    return amount if 0 < amount < math.inf else None
