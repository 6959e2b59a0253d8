"""By how much the clocks behind two nodes of a graph may disagree: what makes a tie of two paths."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph.model import Graph, Resource
from stashtrace.analysis.matching import blocks, contact_errors
from stashtrace.analysis.timeset import NEVER, Int64, int64
from stashtrace.analysis.trace_index import TraceIndex
from stashtrace.model.trace import Trace

#: What a device's times may be off by where its clock left no error, as in the matching of collectives.
_LEAST_DEVICE_ERROR_NS = 1


@dataclass(frozen=True, slots=True)
class Clocks:
    """Whose clocks told the times of each node.

    Attributes
    ----------
    host : int array
        One number for each host's clock; negative if several told them.
    host_error_ns : int array
        Half-width of the interval that holds the offset of that clock; of several, the widest.
    device_error_ns : int array
        What a device's clock adds to it; 0 of nodes that a host timed.
    process_id : int array
        -1 of transfers.
    reading_ns : int
        By how much a reading of one clock may be off.
    """

    host: Int64
    host_error_ns: Int64
    device_error_ns: Int64
    process_id: Int64
    reading_ns: int

    @property
    def widest_ns(self) -> int:
        """The most that two times may be apart without having an order."""
        between = max(int(self.host_error_ns.max(initial=0)), self.reading_ns)
        return 2 * (between + int(self.device_error_ns.max(initial=0)))

    def apart_ns(self, a: Int64, b: Int64) -> Int64:
        """By how much the order of pairs of nodes is in doubt: of one process and one clock not at all."""
        one_host = (self.host[a] == self.host[b]) & (self.host[a] >= 0)
        between = np.where(one_host, 2 * self.reading_ns, self.host_error_ns[a] + self.host_error_ns[b])
        own_a, own_b = self.device_error_ns[a], self.device_error_ns[b]
        one_clock = (
            (self.process_id[a] == self.process_id[b]) & (self.process_id[a] >= 0) & ((own_a > 0) == (own_b > 0))
        )
        return int64(np.where(one_clock, 0, between + own_a + own_b))


def clocks_of(index: TraceIndex, graph: Graph) -> Clocks:
    """Clocks of the nodes by ``alignment`` and ``device_clocks``; a transfer's are those of all ranks in it."""
    trace = index.trace
    processes, alignment = trace.processes, trace.alignment
    error_of = dict(zip(alignment["boot_code"].tolist(), contact_errors(trace).tolist(), strict=True))
    reading = alignment["error_ns"][alignment["boot_code"] == alignment["reference_code"]]
    clock = np.full(int(processes["process_id"].max(initial=-1)) + 2, -1, dtype=np.int64)  # the last: of no process
    clock[processes["process_id"]] = processes["boot_code"]
    error = int64([error_of.get(boot, 0) for boot in clock.tolist()])
    device = _device_errors(trace, len(clock))
    host, host_error = clock[graph.process_id], error[graph.process_id]
    on_device = np.isin(graph.resource, (Resource.STREAM, Resource.DEVICE))
    device_error = np.where(on_device, device[graph.process_id], 0)

    transfers = np.flatnonzero((graph.resource == Resource.TRANSFER) & (graph.row >= 0))
    if len(transfers):
        order, block = blocks(trace.collectives)
        owner = trace.collectives["process_id"][order]
        of_row = np.empty(len(order), dtype=np.int64)
        of_row[order] = block
        mine = of_row[graph.row[transfers]]
        low = _extreme(np.minimum, block, clock[owner])
        host[transfers] = np.where(low == _extreme(np.maximum, block, clock[owner]), low, -1)[mine]
        host_error[transfers] = _extreme(np.maximum, block, error[owner])[mine]
        timed = np.where(index.timed_on_device[order], device[owner], 0)
        device_error[transfers] = _extreme(np.maximum, block, timed)[mine]
    return Clocks(host, host_error, device_error, graph.process_id, int(reading.max(initial=0)))


def _device_errors(trace: Trace, count: int) -> Int64:
    """Largest error of the device clocks of each process."""
    found = np.full(count, _LEAST_DEVICE_ERROR_NS, dtype=np.int64)
    clocks = trace.device_clocks
    np.maximum.at(found, clocks["process_id"], clocks["error_ns"])
    return found


def _extreme(which: np.ufunc, block: Int64, values: npt.NDArray[np.int64]) -> Int64:
    """Smallest or largest value of each block."""
    found = np.full(int(block[-1]) + 1, NEVER if which is np.minimum else -NEVER, dtype=np.int64)
    which.at(found, block, values)
    return found
