"""What the names that NCCL, torch and profilers give to communication mean. Shared by the importers."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from stashtrace.schema.kernel_names import communicates, plain_kernel_name
from stashtrace.schema.kinds import CollectiveOp

#: Parts of names in the order in which they decide: "reduce" is in "allreduce", "gather" in "allgather".
_PARTS = (
    ("allreduce", CollectiveOp.ALL_REDUCE),
    ("reducescatter", CollectiveOp.REDUCE_SCATTER),
    ("allgather", CollectiveOp.ALL_GATHER),
    ("alltoall", CollectiveOp.ALL_TO_ALL),
    ("all2all", CollectiveOp.ALL_TO_ALL),
    ("crossdevicereduce", CollectiveOp.ALL_REDUCE),
    ("quickreduce", CollectiveOp.ALL_REDUCE),
    ("arfusion", CollectiveOp.ALL_REDUCE),
    ("notifydispatch", CollectiveOp.BARRIER),
    ("notifycombine", CollectiveOp.BARRIER),
    # The kernels of DeepEP's low-latency mode may be launched as two halves, of which one only sends.
    ("internodelldispatch", CollectiveOp.OTHER),
    ("internodellcombine", CollectiveOp.OTHER),
    ("nodedispatch", CollectiveOp.ALL_TO_ALL),
    ("nodecombine", CollectiveOp.ALL_TO_ALL),
    ("broadcast", CollectiveOp.BROADCAST),
    ("bcast", CollectiveOp.BROADCAST),
    ("barrier", CollectiveOp.BARRIER),
    # One kernel for a group of sends and receives: an all-to-all, or messages between any two ranks. Whether its ranks
    # wait for each other only their times can tell (``analysis.collectives.matching``).
    ("sendrecv", CollectiveOp.OTHER),
    ("recv", CollectiveOp.RECEIVE),
    ("send", CollectiveOp.SEND),
    ("reduce", CollectiveOp.REDUCE),
    ("scatter", CollectiveOp.SCATTER),
    ("gather", CollectiveOp.GATHER),
)
_HOW = re.compile(
    r"_?(COLLNET_?DIRECT|COLLNET_?CHAIN|NVLS_?TREE|NVLS|RING|TREE|PAT)_?(LL128|LL|SIMPLE)?", re.IGNORECASE
)
#: Operations whose count is that of one peer's part: this rank's input is as many of them as there are ranks.
PER_PEER = (CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_TO_ALL, CollectiveOp.SCATTER)


@lru_cache(maxsize=4096)
def collective_op(name: str) -> CollectiveOp:
    """Operation behind a name such as ``nccl:all_reduce``, ``AllReduce`` or ``ncclDevKernel_AllReduce_Sum_f32``."""
    plain = re.sub(r"[^a-z0-9]", "", plain_kernel_name(name).lower())
    return next((op for part, op in _PARTS if part in plain), CollectiveOp.OTHER)


@lru_cache(maxsize=4096)
def is_collective_kernel(name: str) -> bool:
    """Whether a kernel of this name moves bytes between ranks."""
    return communicates(name)


@lru_cache(maxsize=4096)
def algorithm_and_protocol(kernel: str) -> tuple[str, str]:
    """(RING, LL) of a name that tells them, as NCCL writes them; empty texts otherwise."""
    found = _HOW.search(kernel.partition("(")[0])
    return (found.group(1).upper(), (found.group(2) or "").upper()) if found else ("", "")


def lane_hash(*parts: object) -> int:
    """Identity of operations that are numbered on their own, the same on every rank."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
