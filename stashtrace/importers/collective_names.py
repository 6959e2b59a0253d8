"""Meaning of the names that NCCL, torch and profilers give to communication and checkpoints, for all importers."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from stashtrace.schema.kernel_names import plain_kernel_name
from stashtrace.schema.kinds import CollectiveOp, ElementType

#: Parts of names; the first that a name contains decides, since "allreduce" contains "reduce".
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
    # One kernel for a group of sends and receives: an all-to-all, or messages between any two ranks. Only their times
    # say whether its ranks wait for each other (``analysis.collectives.matching``).
    ("sendrecv", CollectiveOp.OTHER),
    ("recv", CollectiveOp.RECEIVE),
    ("send", CollectiveOp.SEND),
    ("reduce", CollectiveOp.REDUCE),
    ("scatter", CollectiveOp.SCATTER),
    ("gather", CollectiveOp.GATHER),
)
_ALGORITHM = re.compile(
    r"_?(COLLNET_?DIRECT|COLLNET_?CHAIN|NVLS_?TREE|NVLS|RING|TREE|PAT)_?(LL128|LL|SIMPLE)?", re.IGNORECASE
)
#: Operations whose count is that of one peer's part: the input of a rank is this count times the number of ranks.
PER_PEER = (CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_TO_ALL, CollectiveOp.SCATTER)
#: Element types by size in bytes, as torch and C++ name them, in lower case and without namespace.
_ELEMENT_TYPES = {
    1: ("char", "byte", "bool", "int8", "uint8", "unsigned char", "signed char", "qint8", "quint8"),
    2: ("half", "bfloat16", "short", "float16", "int16", "uint16"),
    4: ("float", "int", "int32", "float32", "uint32", "qint32", "complexhalf"),
    8: ("double", "long", "int64", "long int", "float64", "unsigned long", "uint64", "complexfloat"),
    16: ("complexdouble",),
}
#: Names of torch's C++ side; the others are those of Python.
_ELEMENT_NAMES = {
    "float": ElementType.FLOAT32,
    "double": ElementType.FLOAT64,
    "half": ElementType.FLOAT16,
    "byte": ElementType.UINT8,
    "char": ElementType.INT8,
    "short": ElementType.INT16,
    "int": ElementType.INT32,
    "long": ElementType.INT64,
    "bool": ElementType.BOOL8,
    "complexfloat": ElementType.COMPLEX64,
    "complexdouble": ElementType.COMPLEX128,
}
_ELEMENT_BYTES = {name: size for size, names in _ELEMENT_TYPES.items() for name in names}


@lru_cache(maxsize=4096)
def collective_op(name: str) -> CollectiveOp:
    """Return the operation of a name such as ``nccl:all_reduce``, ``AllReduce``, ``ncclDevKernel_AllReduce_Sum_f32``.

    ``CollectiveOp.OTHER`` if the name shows none.
    """
    plain = re.sub(r"[^a-z0-9]", "", plain_kernel_name(name).lower())
    return next((op for part, op in _PARTS if part in plain), CollectiveOp.OTHER)


def element_bytes(name: str) -> int:
    """Return the size of an element type such as ``c10::Half`` or ``Float8_e4m3fn``; 0 if it is unknown."""
    plain = name.strip().removeprefix("c10::").lower()
    return 1 if plain.startswith("float8") else _ELEMENT_BYTES.get(plain, 0)


@lru_cache(maxsize=4096)
def element_type(name: str) -> ElementType:
    """Return an element type by one of its names, such as ``c10::Half`` or ``Float8_e4m3fn``."""
    plain = name.strip().removeprefix("c10::").lower()
    return _ELEMENT_NAMES.get(plain, ElementType.__members__.get(plain.upper(), ElementType.UNKNOWN))


@lru_cache(maxsize=4096)
def algorithm_and_protocol(kernel: str) -> tuple[str, str]:
    """Return algorithm and protocol in NCCL's words, such as ``RING`` and ``LL``; empty where the name has none."""
    match = _ALGORITHM.search(kernel.partition("(")[0])
    return (match.group(1).upper(), (match.group(2) or "").upper()) if match else ("", "")


def subgroup_hash(*parts: object) -> int:
    """Return the identity of operations that are numbered together; it is the same on every rank."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


#: ``save_checkpoint``, ``Checkpoint``, ``Trainer.save_checkpoint``, ``checkpoint_save``: a range around a checkpoint
#: that is written. Loading one, or checkpoints of activations, have other names.
CHECKPOINT = re.compile(
    r"^(?:\w+(?:\.|::))*_?(?:sav(?:e|ing)[ _-]?)?(?:checkpoint|ckpt)(?:[ _-]?sav(?:e|ing))?$", re.IGNORECASE
)
