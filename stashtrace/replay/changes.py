"""Changes that a what-if question makes: ``network.bandwidth=x2``, ``straggler=0``, ``bucket_mb=100``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import re
from dataclasses import dataclass

from stashtrace.errors import UsageError

#: Times, of which ``0`` is none at all.
TIMES = ("compute", "launch", "h2d", "prep", "fetch", "straggler")
#: What a link does; bandwidth and latency are multiplied as named.
LINKS = tuple(f"{link}.{what}" for link in ("network", "interconnect") for what in ("bandwidth", "latency"))
#: ``bucket_cap_mb`` of DistributedDataParallel: a number of MiB.
BUCKET = "bucket_mb"
_HINT = (
    f"quantities: {', '.join((*TIMES, *LINKS))}; values: xN (N times as much), and 0 for times;"
    f" {BUCKET}=N (bucket_cap_mb)"
)


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Attributes
    ----------
    quantity : str
        One of ``TIMES`` and ``LINKS``, or ``BUCKET``.
    factor : float
        The quantity is multiplied by it; 0 takes a time away. Of ``BUCKET`` the size itself.
    """

    quantity: str
    factor: float

    @classmethod
    def parse(cls, text: str) -> Change:
        """Read ``QUANTITY=VALUE``.

        Raises
        ------
        UsageError
            For an unknown quantity, or a value that it cannot have.
        """
        quantity, equals, value = (part.strip() for part in text.partition("="))
        if equals and quantity == BUCKET:
            return cls(quantity, _size_mib(value))
        if not equals or quantity not in (*TIMES, *LINKS):
            raise UsageError(f"cannot change {quantity or text!r}", hint=_HINT)
        if value == "0" and quantity in TIMES:
            return cls(quantity, 0.0)
        number = re.fullmatch(r"x(\d+(?:\.\d*)?|\.\d+)", value)
        factor = float(number.group(1)) if number else math.nan
        if quantity == "straggler":
            raise UsageError(f"straggler={value}: lateness can only be taken away", hint="straggler=0")
        if not (factor > 0 and math.isfinite(factor)):
            raise UsageError(f"{quantity} cannot be {value or 'nothing'}", hint=_HINT)
        return cls(quantity, factor)

    def __str__(self) -> str:
        if self.quantity == BUCKET:
            return f"{BUCKET}={self.factor:g}"
        return f"{self.quantity}={'0' if self.factor == 0 else f'x{self.factor:g}'}"


def _size_mib(text: str) -> float:
    """A size of buckets in MiB."""
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not (size > 0 and math.isfinite(size)):
        raise UsageError(f"{BUCKET} cannot be {text or 'nothing'}", hint=f"a size in MiB, as in {BUCKET}=100")
    return size
