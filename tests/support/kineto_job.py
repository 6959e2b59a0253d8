"""A small two-rank training job as torch.profiler would have recorded it: Kineto JSON, all its times known.

Rank 1 loads its batches slowly, so rank 0 waits for it in the all-reduce of each step:

    host     [next()....][copy][launch x 40 ..........][allreduce][step: launch x 10][item(): sync]
    compute              ccccc  kernels................            kernels.....
    nccl                              [all-reduce, from its launch to when both are there + transfer]

Used by the tests of the guide on GPU traces; `python tests/support/kineto_job.py DIR [SLOWER]` writes the files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STEPS, FORWARD, UPDATE = 6, 40, 10
PARAMETERS = 8 << 20  # of float: 33.6 MB
BASE_US = 1_700_000_000_000_000
KERNELS = (
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 420),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>", 60),
    ("void at::native::vectorized_layer_norm_kernel<float, float>", 90),
    ("flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", 260),
)
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
OPTIMIZER = "void multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor>"


class Rank:
    """One rank's events while they are made."""

    def __init__(self, rank: int, gemm_us: int) -> None:
        self.rank, self.gemm_us = rank, gemm_us
        self.events: list[dict[str, Any]] = []
        self.now = self.free = self.nccl_free = 0
        self._correlation = 0

    def event(self, category: str, name: str, begin: int, length: int, **args: Any) -> None:
        device = category in ("kernel", "gpu_memcpy")
        place = (
            {"pid": self.rank, "tid": args["stream"]} if device else {"pid": 1000 + self.rank, "tid": 1000 + self.rank}
        )
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "ts": BASE_US + begin, "dur": length, **place, "args": args}
        )

    def launch(self, call: str, call_us: int) -> dict[str, Any]:
        """A launching call; what joins the work to it."""
        self._correlation += 1
        self.event("cuda_runtime", call, self.now, call_us, correlation=self._correlation)
        self.now += call_us
        return {"device": self.rank, "correlation": self._correlation}

    def kernel(self, name: str, length: int) -> None:
        """Launch a kernel on the compute stream, 2 us after the call or when the stream is free."""
        joined = self.launch("cudaLaunchKernel", 4)
        begin = max(self.now + 2, self.free + 1)
        self.event("kernel", name, begin, length, stream=7, **joined)
        self.free = begin + length
        self.now += 3

    def copy(self, size: int, microseconds: int) -> None:
        joined = self.launch("cudaMemcpyAsync", 6)
        begin = max(self.now + 2, self.free + 1)
        self.event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", begin, microseconds, stream=7, bytes=size, **joined)
        self.free = begin + microseconds


def job(gemm_us: int = 420) -> list[dict[str, Any]]:
    """The two files' content."""
    ranks = [Rank(0, gemm_us), Rank(1, gemm_us)]
    for step in range(STEPS):
        entered, begun = [], []
        for rank in ranks:
            begun.append(rank.now)
            loading = 3_000 if rank.rank == 0 else 9_000 + 200 * step
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            rank.event("user_annotation", name, rank.now, loading)
            rank.now += loading
            rank.copy(25_690_112, 1_050)
            for number in range(FORWARD):
                name, length = KERNELS[number % len(KERNELS)]
                rank.kernel(name, rank.gemm_us if "gemm" in name else length)
            joined = rank.launch("cudaLaunchKernelExC", 8)
            entered.append((max(rank.now + 2, rank.nccl_free, rank.free - 3_000), joined))
        end = max(begin for begin, _ in entered) + 1_400
        for rank, (begin, joined) in zip(ranks, entered, strict=True):
            rank.event(
                "kernel",
                REDUCE,
                begin,
                end - begin,
                stream=20,
                **joined,
                **{
                    "Collective name": "allreduce",
                    "In msg nelems": PARAMETERS,
                    "Out msg nelems": PARAMETERS,
                    "dtype": "Float",
                    "Group size": 2,
                    "Process Group Name": "0",
                    "Process Group Description": "default_pg",
                    "Process Group Ranks": "[0, 1]",
                    "Seq": step,
                },
            )
            rank.nccl_free = end
            rank.free = max(rank.free, end)
            updating = rank.now
            for _ in range(UPDATE):
                rank.kernel(OPTIMIZER, 35)
            rank.event("user_annotation", "Optimizer.step#AdamW.step", updating, rank.now - updating)
            rank.event("cuda_runtime", "cudaStreamSynchronize", rank.now, rank.free + 5 - rank.now, correlation=0)
            rank.now = rank.free + 45
            begin = begun[rank.rank]
            rank.event("user_annotation", f"ProfilerStep#{step + 10}", begin, rank.now - begin)
    return [
        {
            "schemaVersion": 1,
            "deviceProperties": [{"id": rank.rank, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
            "distributedInfo": {"backend": "nccl", "rank": rank.rank, "world_size": 2},
            "traceEvents": rank.events,
        }
        for rank in ranks
    ]


def write_job(folder: Path, gemm_us: int = 420) -> list[Path]:
    """Write one file per rank."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"rank{number}.pt.trace.json" for number in range(2)]
    for path, content in zip(paths, job(gemm_us), strict=True):
        path.write_text(json.dumps(content), encoding="utf-8")
    return paths


if __name__ == "__main__":
    write_job(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 420)
