"""Find where each of the transformations fits and what it would save: one row per kind and transformation.

Every row has a range of savings a step, how far the figures hold (``validity``), what limits them (``limits``), and the
software that does it today (``switch``). Codes are explained in ``docs/guides/overlap.md``.

Times after each transformation are arithmetic on times alone:

    now                 [ producer ][    all-reduce    ][  update  ]
    split + reorder     [ producer ][ reduce-sc. ][up][ all-gather ]      the update works on slices
    fuse                [ producer ][    all-reduce    ]                  the update inside the collective
    overlap             [ p ][ p ][ p ]                                   in chunks, the collective of one during the
                             [ all ][ red ][ uce ][  update  ]            producer of the next

The transformations are those of CoCoNeT (Jangda et al., ASPLOS 2022). The range in which "fuse" holds is from the times
of Adam that its authors published with the code (parasailteam/coconet@52175e2, the two files
``examples/*-results-128-gpus-all-algos``): 128 GPUs, 2^10 to 2^30 elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stashtrace.analysis.collectives.matching import INSIDE
from stashtrace.analysis.collectives.shares import backends_of_rows
from stashtrace.analysis.intervals import Int64
from stashtrace.calibration.file import Calibration
from stashtrace.calibration.robust_line import Floats
from stashtrace.replay.advice.counted_collectives import (
    AFTER_BACKWARD,
    AFTER_UPDATE,
    BACKWARD,
    DEVICE,
    FORWARD,
    UNSEEN,
    UPDATE,
    Scene,
)
from stashtrace.replay.advice.policy import POLICY
from stashtrace.replay.advice.repeated_collectives import (
    Kind,
    Update,
    by_rank,
    contention_ratio,
    kinds_of,
    spread,
    typical,
    updates,
)
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp


def split_saving_ns(update_ns: Any, ranks_count: Any) -> Floats:
    """Return the time that an update saves if each of N ranks does one N-th of it.

    The bytes that move stay the same: a reduce-scatter and an all-gather are the two halves of an all-reduce.

    >>> float(split_saving_ns(80.0, 4))
    60.0
    """
    ranks = np.maximum(np.asarray(ranks_count, dtype=np.float64), 1.0)
    return np.asarray(np.asarray(update_ns, dtype=np.float64) * (1.0 - 1.0 / ranks))


def gather_cost_ns(transfer_ns: Any, exposed_ns: Any) -> Floats:
    """Return the most that an all-gather after the update adds to the exposed time of the all-reduce.

    Half of the transfer then comes after the update, where no backward hides it. If more than that was exposed of the
    all-reduce, it still is.

    >>> float(gather_cost_ns(10.0, 10.0)), float(gather_cost_ns(10.0, 0.0))
    (0.0, 5.0)
    """
    half = np.asarray(transfer_ns, dtype=np.float64) / 2
    return np.asarray(np.maximum(half - np.asarray(exposed_ns, dtype=np.float64), 0.0))


def overlapped_ns(producer_ns: Any, transfer_ns: Any, chunks_count: Any, contention_ratio: float = 1.0) -> Floats:
    """Return the time of a producer and its collective in chunks, each collective during the next producer.

    ``producer_ns``, ``transfer_ns``: alone, one after the other. ``chunks_count``: at least 1; with 1 nothing overlaps.
    ``contention_ratio``: how many times longer either takes during the other, 1 or more.

    >>> float(overlapped_ns(8.0, 4.0, 4)), float(overlapped_ns(8.0, 4.0, 1))
    (9.0, 12.0)
    """
    producer, transfer = (np.asarray(x, dtype=np.float64) for x in (producer_ns, transfer_ns))
    chunks = np.maximum(np.asarray(chunks_count, dtype=np.float64), 1.0)
    # A single chunk runs alone, so nothing slows down.
    slower = np.where(chunks > 1, max(contention_ratio, 1.0), 1.0)
    return np.asarray(slower * np.maximum(producer, transfer) + np.minimum(producer, transfer) / chunks)


def chunks_of(elements_count: Any) -> Any:
    """Return the number of chunks of a message: none smaller than what is predicted, and not too many."""
    return np.clip(np.asarray(elements_count) // POLICY.fewest_elements, 1, POLICY.most_chunks)


SPLIT, FUSE, OVERLAP = "split_reorder", "fuse", "overlap"
_GEMM = re.compile(r"gemm|cublas|cutlass|nvjet|xmma|_mm_|\bmatmul|Cijk_", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of ``overlap_advice``; times are per step. By default it has no figure."""

    transformation: str
    kind: Kind
    group_size: int
    calls_count: float
    transfer_ns: float
    exposed_ns: float
    work: str
    switch: str
    work_ns: float = 0.0
    gap_ns: float = -1.0
    chunks_count: int = 0
    contention_ratio: float = -1.0
    saving_low_ns: float = 0.0
    saving_high_ns: float = 0.0
    validity: str = "none"
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Measured:
    """Sums per step of one kind, by rank."""

    calls: dict[int, float]
    transfer: dict[int, float]
    exposed: dict[int, float]


@dataclass(frozen=True)
class Patterns:
    """A scene, and what several patterns need of it."""

    scene: Scene
    kinds: list[Kind]
    updates: dict[int, Update]
    contention: float
    calibration: Calibration | None = None

    @classmethod
    def of(cls, scene: Scene, calibration: Calibration | None = None) -> Patterns:
        """Group the calls and measure the updates."""
        return cls(scene, kinds_of(scene), updates(scene), contention_ratio(scene), calibration)

    @cached_property
    def _sums(self) -> dict[int, _Measured]:
        calls, sums = self.scene.calls, {}
        for kind in self.kinds:
            entries = kind.entries
            parts = (np.ones(len(entries)), calls.transfer_ns[entries], calls.exposed_ns[entries])
            sums[kind.number] = _Measured(*(by_rank(self.scene, entries, part) for part in parts))
        return sums

    def rows(self) -> list[Row]:
        """Return the rows of all patterns: those that may save most first, those without a figure last."""
        rows = [*self._of_updates(), *self._overlaps()]
        return sorted(rows, key=lambda r: (r.validity == "none", -r.saving_high_ns, r.transformation))

    # Split + reorder, fuse ------------------------------------------------------------------------

    def _of_updates(self) -> Iterator[Row]:
        gradients = [kind for kind in self._gradients if kind.op == CollectiveOp.ALL_REDUCE]
        whole: dict[int, float] = {}
        for kind in gradients:
            for rank, count in self._sums[kind.number].calls.items():
                whole[rank] = whole.get(rank, 0.0) + count * max(kind.message_bytes, 0)
        for kind in gradients:
            measured, size = self._sums[kind.number], self.scene.size(kind.group_hash)
            ranks = [rank for rank in measured.calls if rank in self.updates or self._unseen(rank)]
            if size < 2 or not ranks:
                continue
            share = {
                rank: measured.calls[rank] * kind.message_bytes / whole[rank] if whole[rank] > 0 else 0.0
                for rank in ranks
            }
            yield from self._split_and_fuse(kind, size, measured, share)

    def _split_and_fuse(self, kind: Kind, size: int, measured: _Measured, share: dict[int, float]) -> Iterator[Row]:
        rank_updates = {rank: self.updates[rank] for rank in share if rank in self.updates}
        work = {rank: share[rank] * update.work_ns for rank, update in rank_updates.items()}
        gap = {rank: share[rank] * max(update.gap_ns, 0.0) for rank, update in rank_updates.items()}
        on_device = any(self.scene.ranks[rank].seen == DEVICE for rank in rank_updates)
        fatal = self._obstacles(kind, list(share))
        limits = ["other_parameters"] if self._moves_other_parameters(list(share)) else []
        sums = typical(measured.calls), typical(measured.transfer), typical(measured.exposed)
        gap_ns = typical(gap) if on_device else -1.0
        base = Row(SPLIT, kind, size, *sums, "update", "sharded_optimizer", work_ns=typical(work), gap_ns=gap_ns)
        if fatal:
            yield replace(base, limits=tuple(fatal))
            yield replace(base, transformation=FUSE, limits=tuple(fatal), switch="fused_optimizer")
            return
        yield self._split(base, work, measured, rank_updates, [*limits])
        yield self._fuse(base, work, gap, measured, rank_updates, [*limits])

    def _split(
        self, base: Row, work: dict[int, float], measured: _Measured, rank_updates: dict[int, Update], limits: list[str]
    ) -> Row:
        halves = self._halves_ratio(base.kind, base.group_size)
        latency = max(self._latency_ns(base.kind.group_hash), 0.0) if halves is None else 0.0
        least, most = (1.0, 1.0) if halves is None else halves
        gather, high, low = {}, {}, {}
        for rank, ns in work.items():
            transfer, saved = measured.transfer[rank], float(split_saving_ns(ns, base.group_size))
            gather[rank] = float(gather_cost_ns(transfer, max(measured.exposed[rank], 0.0)))
            high[rank] = saved - (least - 1.0) * transfer
            low[rank] = saved - (most - 1.0) * transfer - gather[rank] - measured.calls[rank] * latency
        exposed = any(gather.values())
        limits += ["halves_unmeasured"] * (halves is None) + ["gather_exposed"] * exposed
        limits += ["peers_unseen"] * (exposed and self._peers_unseen(base.kind))
        short = any(
            u.kernels_count > 0 and u.work_ns < POLICY.short_kernel_ns * u.kernels_count for u in rank_updates.values()
        )
        limits += ["short_kernels"] * short
        bound = short or "other_parameters" in limits
        lowest = spread(low)[0]
        return replace(
            base,
            saving_low_ns=min(lowest, 0.0) if bound else lowest,
            saving_high_ns=spread(high)[1],
            validity="bound" if bound else "estimate",
            limits=tuple(limits),
        )

    def _halves_ratio(self, kind: Kind, size: int) -> tuple[float, float] | None:
        """Return the calibrated time of reduce-scatter and all-gather by all-reduce, within a standard error."""
        trace = self.scene.trace
        row = int(self.scene.calls.row[kind.entries[0]])
        if self.calibration is None or self.scene.groups[kind.group_hash].link != INSIDE:
            return None
        backend = str(backends_of_rows(trace)[row]) or None
        sizes = {
            "reduce_scatter": kind.message_bytes,
            "all_gather": kind.message_bytes / size,
            "all_reduce": kind.message_bytes,
        }
        answers = [self.calibration.expected(op, [n], ranks=size, backend=backend) for op, n in sizes.items()]
        if any(answer is None or answer.extrapolated.any() for answer in answers):
            return None
        time, error = (np.array([getattr(answer, name)[0] for answer in answers]) for name in ("time_ns", "error_ns"))
        halves, doubt = time[:2].sum(), float(np.hypot(*error[:2]))
        whole = max(float(time[2]), 1.0)
        off = float(np.hypot(doubt / max(halves, 1.0), error[2] / whole))
        # An all-reduce can be made of its halves, so the halves seem to take less only by errors.
        return max(float(halves / whole * (1 - off)), 1.0), max(float(halves / whole * (1 + off)), 1.0)

    def _fuse(
        self,
        base: Row,
        work: dict[int, float],
        gap: dict[int, float],
        measured: _Measured,
        rank_updates: dict[int, Update],
        limits: list[str],
    ) -> Row:
        high = {rank: work[rank] + gap[rank] for rank in work}
        error = {rank: POLICY.fuse_error_ratio * (measured.transfer[rank] + high[rank]) for rank in work}
        hosts = all(update.kernels_count < 0 for update in rank_updates.values())
        if hosts:
            limits.append("not_a_gpu")
        elif base.kind.elements_count < POLICY.fuse_holds_elements:
            limits.append("size_between")
        holds = not limits
        many = any(
            update.kernels_count > POLICY.many_kernels_count or update.gap_ns > POLICY.gaps_ratio * update.work_ns
            for update in rank_updates.values()
        )
        return replace(
            base,
            transformation=FUSE,
            saving_high_ns=spread(high)[1],
            saving_low_ns=max(min(high[r] - error[r] for r in high), 0.0) if holds else 0.0,
            validity="estimate" if holds else "bound",
            limits=tuple(limits),
            switch="fused_optimizer" if hosts or many else "fused_collective",
        )

    # Overlap --------------------------------------------------------------------------------------

    def _overlaps(self) -> Iterator[Row]:
        gradients = {kind.number for kind in self._gradients}
        for kind in self.kinds:
            measured, size = self._sums[kind.number], self.scene.size(kind.group_hash)
            if size < 2 or typical(measured.exposed) < POLICY.exposed_ratio * self.scene.step_ns:
                continue
            if kind.number in gradients:
                inside = kind.position == BACKWARD
                sharded = kind.op == CollectiveOp.REDUCE_SCATTER
                switch = ("fsdp_smaller_units" if sharded else "smaller_buckets") if inside else "ddp_overlap"
                yield self._overlap(kind, size, measured, self._backward_before(kind), "backward", switch)
            elif kind.op in (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER) and kind.position in (
                FORWARD,
                BACKWARD,
            ):
                producer = self._gemm_before(kind)
                if producer is not None:
                    yield self._overlap(kind, size, measured, producer, "gemm", "async_tensor_parallel")

    def _overlap(self, kind: Kind, size: int, measured: _Measured, producer: Floats, work: str, switch: str) -> Row:
        calls, entries = self.scene.calls, kind.entries
        produced_ns = typical(by_rank(self.scene, entries, producer))
        sums = typical(measured.calls), typical(measured.transfer), typical(measured.exposed)
        base = Row(OVERLAP, kind, size, *sums, work, switch, work_ns=produced_ns, contention_ratio=self.contention)
        fatal = [code for code in self._obstacles(kind, list(measured.calls)) if code != "sharded"]
        chunks = int(chunks_of(kind.elements_count))
        if not fatal and chunks < 2:
            fatal = ["too_small"]
        if fatal:
            return replace(base, limits=tuple(fatal))
        transfer = calls.transfer_ns[entries].astype(np.float64)
        exposed = np.maximum(calls.exposed_ns[entries], 0).astype(np.float64)

        def saved(contention: float, latency: float) -> dict[int, float]:
            then = overlapped_ns(producer, transfer, chunks, contention) + (chunks - 1) * latency
            return by_rank(self.scene, entries, np.clip(producer + transfer - then, 0.0, exposed))

        limits = []
        latency = self._latency_ns(kind.group_hash)
        if self._peers_unseen(kind):
            limits.append("peers_unseen")
        if latency < 0:
            limits.append("latency_unknown")
        if self.contention < 0:
            limits.append("contention_unknown")
        bound = "peers_unseen" in limits or "contention_unknown" in limits
        return replace(
            base,
            chunks_count=chunks,
            saving_high_ns=spread(saved(1.0, 0.0))[1],
            saving_low_ns=0.0 if bound else spread(saved(self.contention, max(latency, 0.0)))[0],
            validity="bound" if bound else "estimate",
            limits=tuple(limits),
        )

    def _backward_before(self, kind: Kind) -> Floats:
        """Return the computation that each call of a kind could have run during.

        For a call in backward, that since the begin of backward or since the gradients' collective before was done,
        which had the link until then. For a call after backward, a part of the whole backward: the part that the call's
        transfer is of all such transfers of the step.
        """
        calls, produced = self.scene.calls, np.zeros(len(kind.entries))
        same_position = np.zeros(len(calls), dtype=bool)
        for other in self._gradients:
            same_position[other.entries] = other.position == kind.position
        for rank, work in self.scene.ranks.items():
            of_rank = np.flatnonzero(same_position & (calls.rank == rank))
            if not len(of_rank):
                continue
            order = of_rank[np.lexsort((calls.enter_ns[of_rank], calls.step[of_rank]))]
            enter = calls.enter_ns[order]
            began = np.minimum(self._backward_begins(rank, enter), enter)
            steps = GroupBy.runs(calls.step[order])
            if kind.position == BACKWARD:
                free = np.concatenate([[0], np.maximum.accumulate(calls.end_ns[order])[:-1]])
                since = np.where(steps.position == 0, began, np.maximum(began, free))
                made = work.computing.within(np.minimum(since, enter), enter).astype(np.float64)
            else:
                transfers = steps.sum(calls.transfer_ns[order])[steps.number]
                whole = work.computing.within(began[steps.first], enter[steps.first])[steps.number]
                made = whole * calls.transfer_ns[order] / np.maximum(transfers, 1)
            at = np.full(len(calls), -1, dtype=np.int64)
            at[order] = np.arange(len(order))
            mine = calls.rank[kind.entries] == rank
            produced[mine] = made[at[kind.entries[mine]]]
        return produced

    def _backward_begins(self, rank: int, enter: Int64) -> Int64:
        """Return the begin of the backward before each moment; on a device, that of the first kernel launched in it."""
        work, kernels = self.scene.ranks[rank], self.scene.trace.kernels
        begins = work.backward.begin
        if work.seen == DEVICE and len(begins):
            launch, begin = kernels["launch_ns"][work.kernels], kernels["begin_ns"][work.kernels]
            at = np.searchsorted(begins, launch, side="right") - 1
            by_backward = GroupBy.numbered(np.where(launch >= 0, at, -1), len(begins))
            first = by_backward.min(begin, empty=np.iinfo(np.int64).max)
            begins = np.minimum.accumulate(first[::-1])[::-1]  # a backward that launched nothing has the next one's
        at = np.searchsorted(begins, enter, side="right") - 1
        return np.where(at >= 0, np.append(begins, 0)[at], enter)

    def _gemm_before(self, kind: Kind) -> Floats | None:
        """Return the length of the matrix product that ended right before each call; None if most calls have none."""
        calls, kernels, entries = self.scene.calls, self.scene.trace.kernels, kind.entries
        produced = np.zeros(len(entries))
        for rank, work in self.scene.ranks.items():
            mine = np.flatnonzero(calls.rank[entries] == rank)
            if work.seen != DEVICE or not len(mine):
                continue
            end = kernels["end_ns"][work.kernels]
            order = np.argsort(end, kind="stable")
            enter = calls.enter_ns[entries[mine]]
            at = np.searchsorted(end[order], enter, side="right") - 1
            last = work.kernels[order[np.maximum(at, 0)]]
            codes = np.unique(kernels["name_code"][last])
            products = [code for code in codes.tolist() if _GEMM.search(self.scene.trace.text(code))]
            hit = (at >= 0) & (enter - kernels["end_ns"][last] <= POLICY.behind_ns)
            hit &= np.isin(kernels["name_code"][last], products)
            produced[mine[hit]] = (kernels["end_ns"] - kernels["begin_ns"])[last[hit]]
        return produced if len(produced) and (produced > 0).mean() >= POLICY.produced_ratio else None

    # What they share ------------------------------------------------------------------------------

    @cached_property
    def _gradients(self) -> list[Kind]:
        """Collectives that reduce gradients: called in or after backward, and not in forward as activations are."""
        forward = {(k.group_hash, k.op, k.message_bytes) for k in self.kinds if k.position == FORWARD}
        ops = (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER)
        return [
            kind
            for kind in self.kinds
            if kind.op in ops
            and kind.position in (BACKWARD, AFTER_BACKWARD)
            and (kind.group_hash, kind.op, kind.message_bytes) not in forward
        ]

    def _obstacles(self, kind: Kind, ranks: list[int]) -> list[str]:
        """Return the codes of why a kind cannot be predicted."""
        codes = []
        if kind.message_bytes <= 0:
            codes.append("no_payload")
        elif kind.elements_count < POLICY.fewest_elements:
            codes.append("too_small")
        if any(self._unseen(rank) for rank in ranks):
            codes.append("no_kernels")
        if not self._sharded.isdisjoint(ranks):
            codes.append("sharded")
        return codes

    def _unseen(self, rank: int) -> bool:
        return self.scene.ranks[rank].seen == UNSEEN

    @cached_property
    def _sharded(self) -> set[int]:
        """Ranks whose gradients are scattered, or whose parameters are gathered in or after the update."""
        gradients = {kind.number for kind in self._gradients}
        scattered: set[int] = set()
        reduced: dict[int, float] = {}
        gathered: dict[int, float] = {}
        for kind in self.kinds:
            in_update = kind.position in (UPDATE, AFTER_UPDATE)
            whole = self.scene.size(kind.group_hash) if kind.op == CollectiveOp.ALL_GATHER else 1
            for rank, count in self._sums[kind.number].calls.items():
                moved = count * max(kind.message_bytes, 0)
                if kind.number in gradients and kind.op == CollectiveOp.ALL_REDUCE:
                    reduced[rank] = reduced.get(rank, 0.0) + moved
                elif kind.number in gradients and moved >= POLICY.fewest_elements * kind.element_bytes:
                    scattered.add(rank)
                elif in_update and kind.op in (CollectiveOp.ALL_GATHER, CollectiveOp.BROADCAST):
                    gathered[rank] = gathered.get(rank, 0.0) + max(whole, 1) * moved
        many = {r for r, moved in gathered.items() if moved > 0 and moved >= POLICY.sharded_ratio * reduced.get(r, 0.0)}
        return scattered | many

    def _moves_other_parameters(self, ranks: list[int]) -> bool:
        """Return True if ranks use all-to-all: embedding tables and experts are updated without an all-reduce."""
        chosen = self.scene.calls.op == CollectiveOp.ALL_TO_ALL
        return bool(np.isin(self.scene.calls.rank[chosen], ranks).any())

    def _peers_unseen(self, kind: Kind) -> bool:
        recorded = np.unique(self.scene.calls.rank[kind.entries])
        return bool(self.scene.calls.partial[kind.entries].any()) or len(recorded) < self.scene.size(kind.group_hash)

    def _latency_ns(self, group_hash: int) -> float:
        """Return the median time of the group's small messages, -1 if it sent none."""
        calls = self.scene.calls
        small = (
            (calls.group_hash == group_hash) & (calls.message_bytes > 0) & (calls.message_bytes <= POLICY.small_bytes)
        )
        small &= calls.op == CollectiveOp.ALL_REDUCE
        return float(np.median(calls.transfer_ns[small])) if small.any() else -1.0
