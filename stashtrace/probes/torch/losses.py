"""The losses of the first backward passes, exactly: two runs that do the same have the same.

``bootstrap`` imports this file with ``STASHTRACE_LOSSES`` alone, which ``stashtrace tune`` sets. The loss is what
``backward()`` is called on. A loss on a device is read together with seven others, so that the host waits for the
device once in eight passes. ``lab/tune/losses.py`` reads the facts.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any

from stashtrace.probes import annotations as marks
from stashtrace.probes import patching, recorder
from stashtrace.probes.recorder import failed

VARIABLE = "STASHTRACE_LOSSES"
#: Key of a fact, followed by the number of its first loss; the same in ``lab/tune/losses.py``.
FACT = "losses"
COLLECTOR = "torch_step"
#: Losses of one fact; the first ones have a fact each, for jobs that are short.
_CHUNK = 8
_MOST_LOSSES = 512


class _Losses:
    """What is not recorded yet."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._count = 0
        self._pending: list[Any] = []

    def add(self, outputs: Any) -> None:
        """Note what a backward pass begins at: a tensor, or several."""
        if self._count >= _MOST_LOSSES:
            return
        tensors = (outputs,) if isinstance(outputs, self._torch.Tensor) else tuple(outputs)
        cuda = self._torch.cuda
        if any(tensor.is_cuda for tensor in tensors) and cuda.is_current_stream_capturing():
            return
        with self._torch.no_grad():
            sums = [tensor.detach().sum(dtype=self._torch.float64) for tensor in tensors]
        self._pending.append(sums)
        self._count += 1
        if self._count <= _CHUNK or len(self._pending) == _CHUNK:
            self._flush()

    def _flush(self) -> None:
        first, values = self._count - len(self._pending), [math.fsum(map(float, sums)) for sums in self._pending]
        self._pending.clear()
        recorder.record_fact(f"{FACT} {first}", " ".join(value.hex() for value in values))


def install(torch: ModuleType) -> None:
    """Wrap ``torch.autograd.backward``, which ``Tensor.backward`` calls."""
    original, losses = torch.autograd.backward, _Losses(torch)

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if not marks.is_compiling():
            try:
                losses.add(tensors)
            except Exception as error:
                failed(COLLECTOR, "losses", error)
        original(tensors, *args, **kwargs)

    # Not marked as ours: the probe of steps wraps this function of an older torch.
    torch.autograd.backward = functools.update_wrapper(patching.look_like(backward, original), original)
