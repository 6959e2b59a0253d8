"""Toy molecule regressor: atoms are summed into molecules by segment."""

# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "50"))
CLOCK = {"readout": 0.0}


class SegmentSum(torch.autograd.Function):
    """Sum rows by segment; `audited` keeps a per-row norm for the error report."""

    @staticmethod
    def forward(ctx, atoms, owner, n_mol, audited):
        ctx.save_for_backward(owner)
        ctx.audited = audited
        return atoms.new_zeros(n_mol, atoms.shape[1]).index_add_(0, owner, atoms)

    @staticmethod
    def backward(ctx, grad):
        (owner,) = ctx.saved_tensors
        if not ctx.audited:
            return grad[owner], None, None, None
        out = grad.new_empty(owner.numel(), grad.shape[1])
        t0 = time.perf_counter()
        for row, mol in enumerate(owner.tolist()):
            out[row] = grad[mol]  # <- here
        CLOCK["readout"] += time.perf_counter() - t0
        return out, None, None, None


class SegmentMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, atoms, owner, n_mol):
        count = torch.bincount(owner, minlength=n_mol).clamp_min(1).unsqueeze(1)
        ctx.save_for_backward(owner, count)
        return atoms.new_zeros(n_mol, atoms.shape[1]).index_add_(0, owner, atoms) / count

    @staticmethod
    def backward(ctx, grad):
        owner, count = ctx.saved_tensors
        scaled = grad / count
        out = grad.new_zeros(owner.numel(), grad.shape[1])
        for row, mol in enumerate(owner[:32].tolist()):
            out[row] = scaled[mol]
        out[32:] = scaled[owner[32:]]
        return out, None, None


class Readout(nn.Module):
    def __init__(self, dim, audited):
        super().__init__()
        self.audited = audited
        self.embed = nn.Sequential(nn.Linear(32, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        self.energy = nn.Linear(2 * dim, 1)

    def forward(self, feats, owner, n_mol):
        h = self.embed(feats)
        pooled = [SegmentSum.apply(h, owner, n_mol, self.audited), SegmentMean.apply(h, owner, n_mol)]
        return self.energy(torch.cat(pooled, dim=1)).squeeze(1)


def sample_batch(gen, atoms, molecules):
    feats = torch.randn(atoms, 32, generator=gen)
    owner = torch.randint(0, molecules, (atoms,), generator=gen).sort().values
    target = torch.zeros(molecules).index_add_(0, owner, feats[:, 0].abs())
    return feats, owner, target


def run(args):
    rank = dist.get_rank()
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(rank)
    model = DistributedDataParallel(Readout(args.dim, audited=(rank == args.audit_rank)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    dist.barrier()
    began = time.perf_counter()
    for step in range(STEPS):
        feats, owner, target = sample_batch(gen, args.atoms, args.molecules)
        loss = nn.functional.huber_loss(model(feats, owner, args.molecules), target)
        opt.zero_grad()
        loss.backward()  # <- also
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
    wall = time.perf_counter() - began
    if rank == 0:
        print("final loss", loss.item())
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * CLOCK['readout'] / STEPS:.1f} step_ms={1e3 * wall / STEPS:.1f}\n"
    )


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--dim", type=int, default=160)
    ap.add_argument("--atoms", type=int, default=8000)
    ap.add_argument("--molecules", type=int, default=300)
    ap.add_argument("--audit-rank", type=int, default=0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run(ap.parse_args())
    dist.destroy_process_group()
