"""Decide by its name whether a kernel moves bytes between ranks. Importers and the decoder of deep mode use it.

Kernels of NCCL, RCCL and MSCCL follow a naming scheme. The others are listed by name: torch's symmetric memory
(``multimem_all_reduce_kernel`` and similar ones, NVSHMEM), the all-reduces of vLLM, SGLang, AITER, FlashInfer and
TensorRT-LLM, and DeepEP. A fused kernel (all-reduce with a norm) counts as communication as a whole, since its parts
cannot be distinguished.
"""

from __future__ import annotations

import re
from functools import lru_cache

_LIBRARY = re.compile(r"\b(nccl|rccl|msccl)\w*kernel", re.IGNORECASE)
_OTHERS = re.compile(
    r"""
      multimem_(all_reduce|all_gather|reduce_scatter|one_shot|two_shot|broadcast)
    | (one|two)_?shot_?all_?reduce
    | cross_device_reduce_
    | all_?reduce_fusion | trtllm_(mnnvl_)?all_?reduce | \bar_fusion:: | quickreduce::
    | \bdeep_ep(_\w+)?::(?!(\w+::)*(layout::|get_dispatch_layout))
    | \bc10d::symmetric_memory:: | nvshmem | rocshmem | \b(barrier|sync)_on_stream_kernel
    | \bexchangeSplitAndOffset | \ballToAllV | \ballToAllGet | all_to_all_vdev
    """,
    re.IGNORECASE | re.VERBOSE,
)
#: Kernels that a compiler fused of several operators and named after them: pointwise work, also if a name matches.
_GENERATED = re.compile(r"^triton_(poi|red|per|tem|mm|for|cat)_")
_NAMELESS = re.compile(r"(\(anonymous namespace\)|<unnamed>|\(anonymous\))::")


@lru_cache(maxsize=4096)
def plain_kernel_name(name: str) -> str:
    """Name of a kernel's function with its namespaces, without return type, template arguments and parameters."""
    bare = _NAMELESS.sub("", name).partition("(")[0].partition("<")[0].strip()
    return bare.removeprefix("void ").strip()


@lru_cache(maxsize=4096)
def is_nccl_kernel(name: str) -> bool:
    """Whether a kernel of this name is of NCCL, or of a library derived from it (RCCL, MSCCL)."""
    return _LIBRARY.search(plain_kernel_name(name)) is not None


@lru_cache(maxsize=4096)
def communicates(name: str) -> bool:
    """Whether a kernel of this name, demangled, moves bytes between ranks."""
    plain = plain_kernel_name(name)
    if _LIBRARY.search(plain) is not None:
        return True
    return _OTHERS.search(plain) is not None and _GENERATED.match(plain) is None
