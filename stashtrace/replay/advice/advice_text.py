"""The text of advice about overlapping, fusing and splitting collectives; no sentence claims more than its row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stashtrace.replay.advice.policy import POLICY
from stashtrace.text.prose import wrap
from stashtrace.text.units import bytes_text, duration_text, percent_text

if TYPE_CHECKING:
    from stashtrace.replay.advice.advice_table import Advice

_OPS = {"all_reduce": "all-reduces", "reduce_scatter": "reduce-scatters"}
#: Each limit in words; limits of rows without a figure are in no sentence.
LIMITS = {
    "halves_unmeasured": "if a reduce-scatter and an all-gather together take as long as the all-reduce",
    "gather_exposed": "the all-gather after the update may be exposed",
    "peers_unseen": "not all ranks were recorded, so waits for them count as transfer",
    "other_parameters": "the update may hold parameters that are not all-reduced",
    "short_kernels": "its kernels are so short that slices may take as long",
    "not_a_gpu": "if it is not fused already, which cannot be seen",
    "size_between": "",  # the sentence gives an upper limit in any case
    "contention_unknown": "how much both would slow each other down is unknown",
    "latency_unknown": "the cost of more messages is unknown",
    "pace": "beyond that, something else limits the step",
}
#: Software that does it today.
SWITCHES = {
    "sharded_optimizer": "fully_shard, DeepSpeed's ZeRO stage 1, Megatron's distributed optimizer",
    "fused_optimizer": "fused=True or foreach=True of torch's optimizers, torch.compile",
    "fused_collective": "nothing today",
    "smaller_buckets": "a smaller bucket_cap_mb of DistributedDataParallel, which divides no tensor",
    "ddp_overlap": "DistributedDataParallel, which sends buckets during backward",
    "fsdp_smaller_units": "fully_shard on smaller modules",
    "async_tensor_parallel": "async tensor parallel: torch's _micro_pipeline_tp, Megatron's --tp-comm-overlap",
}


def advice_lines(advice: Sequence[Advice]) -> list[str]:
    """Return the lines for the terminal, below an empty one; none without advice."""
    lines = [""] if advice else []
    for item in advice:
        text = advice_text(item)
        lines += wrap(f"advice: {text}", "", width=POLICY.width_characters, rest=2)
    return lines


def advice_text(item: Advice) -> str:
    """Write one sentence: what was seen, what would change, what that saves, the conditions, and the switch."""
    conditions = "".join(f"; {LIMITS[code]}" for code in item.limits if LIMITS[code])
    return f"{_SEEN[item.transformation](item)} {_saved(item)}{conditions}. Switch: {SWITCHES[item.switch]}"


def advice_row(item: Advice) -> dict[str, Any]:
    """Return the advice for JSON."""
    names = [name for name in item.__dataclass_fields__ if name not in ("is_bound", "limits")]
    row = {name: getattr(item, name) for name in names}
    return row | {
        "validity": "bound" if item.is_bound else "estimate",
        "limits": list(item.limits),
        "text": advice_text(item),
    }


def _saved(item: Advice) -> str:
    high, share = duration_text(item.saving_high_ns), percent_text(item.share_ratio)
    low = duration_text(item.saving_low_ns)
    # A saving limited by the replay ("pace") is that of the mean step, not of a rank.
    most = ", the most of any rank" if _is_uneven(item) and "pace" not in item.limits else ""
    if item.transformation == "fuse":  # no fused kernel takes no time at all
        return f"less than {high} a step ({share}){most}"
    if item.is_bound:
        least = f"at least {low} and " if item.saving_low_ns > 0 else ""
        return f"{least}up to {high} a step ({share}){most}"
    if low == high:
        return f"{high} a step ({share})"
    return f"{low} to {high} a step (up to {share}){most.replace('the most', 'the least and the most')}"


def _is_uneven(item: Advice) -> bool:
    """Return True if a rank could save clearly more than the median rank's times in the sentence allow."""
    allowed_ns = {
        "split_reorder": item.work_ns * (1 - 1 / item.ranks_count),
        "fuse": item.work_ns + max(item.gap_ns, 0.0),
        "overlap": item.exposed_ns,
    }
    return item.saving_high_ns > POLICY.uneven_ratio * allowed_ns.get(item.transformation, math.inf)


def _whose(item: Advice) -> str:
    return " on the median rank" if _is_uneven(item) else ""


def _messages(item: Advice) -> str:
    return f"{_OPS.get(item.op, item.op)} of {bytes_text(item.moved_bytes)} a step"


def _split(item: Advice) -> str:
    return (
        f"on the recorded ranks the update after {_messages(item)} takes {duration_text(item.work_ns)}"
        f"{_whose(item)}; instead, a reduce-scatter, the update of one of {item.ranks_count} slices and an all-gather"
        " would save"
    )


def _fuse(item: Advice) -> str:
    gaps = f" and leaves gaps of {duration_text(item.gap_ns)} between its kernels" if item.gap_ns > 0 else ""
    return (
        f"the update after {_messages(item)} takes {duration_text(item.work_ns)}{gaps}{_whose(item)}; as one"
        " kernel, or a few, it would save"
    )


def _overlap(item: Advice) -> str:
    producer = {"backward": "the backward before them", "gemm": "the matrix products before them"}[item.work]
    exposed, transfer = duration_text(item.exposed_ns), duration_text(item.transfer_ns)
    part = f"the {transfer}" if exposed == transfer else f"{exposed} of the {transfer}"
    return (
        f"nothing is computed during {part} that {_messages(item)} take{_whose(item)}; in {item.chunks_count} chunks"
        f" during {producer} they would save"
    )


_SEEN = {"split_reorder": _split, "fuse": _fuse, "overlap": _overlap}
