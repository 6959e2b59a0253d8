"""What a run records about its DistributedDataParallel: the size of its buckets, and its gradients.

``probes/torch/ddp`` records it; runs of other tools have nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.schema.trace import Trace

Floats = npt.NDArray[np.float64]

#: Facts of a process, each with the number of the wrapper; the same in ``probes/torch/ddp``.
BUCKET, GRADIENTS = "ddp_bucket", "ddp_gradients"
_MOST_WRAPPERS = 8
#: The wrapper by the name of its class, which recordings of other tools show.
WRAPPER = "DistributedDataParallel"


@dataclass(frozen=True, slots=True)
class DdpFacts:
    """Facts on which all ranks agree; they may have several models."""

    #: ``bucket_cap_mb``; None if unknown, or if models differ.
    bucket_mib: float | None
    #: Where the size comes from: ``default`` (torch's own, whose first bucket is smaller), ``script``, ``applied`` (by
    #: ``STASHTRACE_BUCKET_MB``); empty if no such model was recorded.
    sources: tuple[str, ...]
    #: In the reverse order of the parameters, usually the order in which they are made; empty if unknown.
    gradients_bytes: Floats


def shows_ddp(trace: Trace) -> bool:
    """Return True if a run shows that wrapper, by its class or by a recorded fact: others send no buckets."""
    return trace.strings.find(WRAPPER) >= 0 or bool(ddp_facts(trace).sources)


def ddp_facts(trace: Trace) -> DdpFacts:
    """Read the facts of a run; facts that cannot be read are ignored."""
    matches = [re.fullmatch(r"([0-9.e+-]+) (\w+)", text) for text in _facts(trace, BUCKET)]
    whole = [match.groups() for match in matches if match is not None]
    sizes = {_number(size) for size, _ in whole}
    lists = _facts(trace, GRADIENTS)
    gradients = np.zeros(0)
    if len(lists) == 1 and len(whole) == 1 and re.fullmatch(r"\d+( \d+)*", lists[0]):
        gradients = np.array(lists[0].split(), dtype=np.float64)
    return DdpFacts(sizes.pop() if len(sizes) == 1 else None, tuple(sorted({by for _, by in whole})), gradients)


def _facts(trace: Trace, key: str) -> list[str]:
    """Return the distinct values of a fact, over all wrappers of all processes."""
    codes = [trace.strings.find(f"{key} {number}") for number in range(_MOST_WRAPPERS)]
    chosen = np.isin(trace.metadata["key_code"], [code for code in codes if code >= 0])
    return [trace.text(int(value)) for value in np.unique(trace.metadata["value_code"][chosen])]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
