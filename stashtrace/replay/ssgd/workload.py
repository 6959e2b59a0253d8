"""The work of one worker in an iteration, layer by layer, and the size of its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.errors import UsageError

Floats = npt.NDArray[np.float64]
_PER_LAYER = ("forward_ns", "backward_ns", "communication_ns", "gradient_bytes")


@dataclass(frozen=True)
class Workload:
    """One iteration of one worker. Layers are in the order of the forward pass.

    Raises UsageError if columns have different lengths, there is no layer, or a number is negative or not finite.
    """

    names: tuple[str, ...]
    #: Time of each layer.
    forward_ns: Floats
    backward_ns: Floats
    #: Measured aggregation of each layer's gradients; NaN where it was not measured.
    communication_ns: Floats
    #: 0 for a layer without parameters.
    gradient_bytes: Floats
    #: Time to read a batch, to copy it to the device, and to update the model.
    io_ns: float = 0.0
    copy_ns: float = 0.0
    update_ns: float = 0.0

    def __post_init__(self) -> None:
        if not self.names:
            raise UsageError("a network without layers has no iteration")
        for name in _PER_LAYER:
            values = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, values)
            if values.shape != (len(self.names),):
                raise UsageError(f"{len(self.names)} layers, but {name} has {values.size} values")
            known = values[~np.isnan(values)] if name == "communication_ns" else values
            if not (np.isfinite(known) & (known >= 0)).all():
                raise UsageError(f"{name} of a layer is negative or no number")
        for name in ("io_ns", "copy_ns", "update_ns"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise UsageError(f"{name} is negative or no number")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sends(self) -> npt.NDArray[np.int64]:
        """Layers with gradients, in the order of the backward pass."""
        return np.flatnonzero(self.gradient_bytes > 0)[::-1]

    @property
    def ready_ns(self) -> Floats:
        """When the gradients of :attr:`sends` are ready, since the begin of the backward pass."""
        made: Floats = np.cumsum(self.backward_ns[::-1])[::-1]
        return made[self.sends]

    @property
    def sizes_bytes(self) -> Floats:
        """Size of the gradients of :attr:`sends`."""
        sizes: Floats = self.gradient_bytes[self.sends]
        return sizes

    @property
    def measured_ns(self) -> Floats | None:
        """Measured aggregation of :attr:`sends`, None if a layer has none."""
        measured: Floats = self.communication_ns[self.sends]
        return None if np.isnan(measured).any() else measured

    @property
    def alone_ns(self) -> float:
        """Computation of an iteration without batches and communication."""
        return float(self.forward_ns.sum() + self.backward_ns.sum() + self.update_ns)


def rounded(times_ns: Any) -> npt.NDArray[np.int64]:
    """Round to whole nanoseconds, which the replay counts."""
    return np.rint(np.asarray(times_ns, dtype=np.float64)).astype(np.int64)
