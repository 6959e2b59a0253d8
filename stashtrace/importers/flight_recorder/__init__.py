"""Imports dumps of torch's Flight Recorder: the last collectives that one rank called, and which never ended.

``torch._C._distributed_c10d._dump_nccl_trace`` and ``_dump_fr_trace`` give pickles, their ``_json`` forms JSON. A job
that hangs writes one file per rank, whose name ends in the rank. Times are of the host's wall clock: calls are exact,
ends are late, because a polling thread notices them.
"""

from stashtrace.importers.flight_recorder.read_dump import load, sniff

__all__ = ["load", "sniff"]
