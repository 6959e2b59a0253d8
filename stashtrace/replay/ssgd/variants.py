"""Which tasks of an iteration overlap: the variants of the paper, and those of its four frameworks.

S. Shi, Q. Wang, X. Chu, B. Li, A DAG model of synchronous stochastic gradient descent in distributed deep learning
(arXiv 1805.03812). The presets state which tasks each framework overlapped in the versions of that study (2018). They
are given from memory of the paper, not from a second reading, and do not describe later versions.
"""

from __future__ import annotations

from dataclasses import dataclass

from stashtrace.errors import UsageError


@dataclass(frozen=True, slots=True)
class Variant:
    """Tasks that overlap with the computation of an iteration."""

    name: str
    #: The next batch is read meanwhile.
    prefetches: bool
    #: The next batch is also copied to the device meanwhile.
    copies_ahead: bool
    #: Gradients of a layer are aggregated while earlier layers still make theirs (wait-free back-propagation);
    #: otherwise after the backward pass.
    layer_wise: bool

    def __post_init__(self) -> None:
        if self.copies_ahead and not self.prefetches:
            raise UsageError(f"{self.name}: a batch that is not read ahead cannot be copied ahead")

    @property
    def overlaps(self) -> str:
        """Names of the tasks that overlap with computation."""
        parts = ["reading"] * self.prefetches + ["copies"] * self.copies_ahead + ["communication"] * self.layer_wise
        return ", ".join(parts) or "nothing"


NAIVE = Variant("naive", prefetches=False, copies_ahead=False, layer_wise=False)
PREFETCH = Variant("prefetch", prefetches=True, copies_ahead=True, layer_wise=False)
WAIT_FREE = Variant("wfbp", prefetches=True, copies_ahead=True, layer_wise=True)
VARIANTS = (NAIVE, PREFETCH, WAIT_FREE)
PRESETS = (
    Variant("caffe-mpi", prefetches=True, copies_ahead=True, layer_wise=True),
    Variant("cntk", prefetches=True, copies_ahead=False, layer_wise=False),
    Variant("mxnet", prefetches=True, copies_ahead=False, layer_wise=True),
    Variant("tensorflow", prefetches=True, copies_ahead=False, layer_wise=True),
)
