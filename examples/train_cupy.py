"""Train a two-layer network with CuPy and NCCL, one process and one GPU per rank.

    torchrun --nproc-per-node 2 examples/train_cupy.py        (or mpirun -n 2 python examples/train_cupy.py)

To see where its time goes, put `stashtrace run --` in front. Without torch nobody can know where a step ends, so the
loop says it: `stashtrace.step()` does nothing outside a traced run. NCCL calls are seen as they are; copies and waits
of CuPy's built-in CUDA runtime need `stashtrace run --lookup-hook`.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os

import cupy
import numpy as np
from cupyx.distributed import init_process_group

import stashtrace

FEATURES, CLASSES = 1024, 10


def rank_of_environment() -> tuple[int, int, int]:
    """Rank, local rank and number of ranks, as torchrun, Open MPI or Slurm set them; alone without any."""
    for names in (
        ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ):
        if all(name in os.environ for name in names):
            rank, local, world = (int(os.environ[name]) for name in names)
            return rank, local, world
    return 0, 0, 1


def batches(count: int, size: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Clusters around one centre per class, in host memory."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(CLASSES, FEATURES)).astype(np.float32)
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, size=(count, size))
    return [(centres[own] + random.normal(size=(size, FEATURES)).astype(np.float32), own) for own in labels]


def gradients(
    weights: list[cupy.ndarray], images: cupy.ndarray, labels: cupy.ndarray
) -> tuple[list[cupy.ndarray], cupy.ndarray]:
    """Loss of a batch and its gradients: ReLU between two matrices, softmax at the end."""
    first, second = weights
    hidden = cupy.maximum(images @ first, 0)
    scores = hidden @ second
    scores -= scores.max(axis=1, keepdims=True)
    shares = cupy.exp(scores)
    shares /= shares.sum(axis=1, keepdims=True)
    rows = cupy.arange(len(labels))
    loss = -cupy.log(shares[rows, labels]).mean()
    shares[rows, labels] -= 1
    shares /= len(labels)
    back = (shares @ second.T) * (hidden > 0)
    return [images.T @ back, hidden.T @ shares], loss


def main() -> None:
    """Entry point of each rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=0.1)
    options = parser.parse_args()
    rank, local_rank, world_size = rank_of_environment()
    cupy.cuda.Device(local_rank % cupy.cuda.runtime.getDeviceCount()).use()
    group = init_process_group(world_size, rank) if world_size > 1 else None

    random = cupy.random.RandomState(0)  # the same weights everywhere
    weights = [
        random.standard_normal((FEATURES, options.hidden), dtype=cupy.float32) / FEATURES**0.5,
        random.standard_normal((options.hidden, CLASSES), dtype=cupy.float32) / options.hidden**0.5,
    ]
    data = batches(8, options.batch_size, seed=1 + rank)
    for step in range(options.steps):
        images, labels = data[step % len(data)]
        slopes, loss = gradients(weights, cupy.asarray(images), cupy.asarray(labels))
        for weight, slope in zip(weights, slopes, strict=True):
            if group is not None:
                group.all_reduce(slope, slope)
            weight -= options.lr / world_size * slope
        stashtrace.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}/{options.steps}  loss {float(loss):.3f}", flush=True)
    cupy.cuda.Device().synchronize()
    if group is not None:
        group.stop()


if __name__ == "__main__":
    main()
