"""Words of the page that are not in the summary: kinds of time, methods, bounds."""

from __future__ import annotations

from typing import Any

from stashtrace.report.steps_over_time import CLASSES
from stashtrace.schema.stall_kinds import KIND_LABELS
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text, percent_text

#: Kind of time -> what a person calls it.
KINDS = KIND_LABELS
METHODS = {
    "host": "times of the host: phases of the loop, waits for batches, collectives and blocking calls",
    "brackets": "timing events on the device around its work, and times of the host",
    "kernels": "records of each kernel and copy on the device, and times of the host",
    "mixed": "records of kernels in some steps, timing events or times of the host in the others",
}
_WAIT_METHODS = {
    "clock": "The ranks' clocks give the order of their entries.",
    "duration": "The ranks' clocks are too far apart, so the shortest duration of all ranks is the transfer and the"
    " rest is waiting.",
    "unordered": "The ranks entered closer together than their clocks can resolve, so no rank is called late.",
    "partial": "The row of a member is missing: a rank without a record may have entered later still.",
    "hung": "A member had not entered when the recording ended.",
}
_LINK_METHODS = {
    "calibration": "the calibration of this machine",
    "extrapolated": "the calibration, beyond the sizes that it measured",
    "crosses_hosts": "none: the group spans hosts, and a calibration covers one",
    "not_calibrated": "none: not this operation, backend or number of ranks",
    "none": "none: the run has no calibration",
}


def title_around(facts: dict[str, Any]) -> tuple[str, str]:
    """Return what stands before and behind the name of the run in the title of its report."""
    return ("What was recorded of run ", "") if facts["budget"]["missing"] else ("Where the time of run ", " went")


def span_text(low_ns: float, high_ns: float) -> str:
    """Word the bounds of a time; ``exactly`` where they are the same to the digits shown."""
    low, high = duration_text(low_ns), duration_text(high_ns)
    return f"{low}, by both bounds" if low == high else f"not less than {low}, not more than {high}"


def method_text(names: list[str]) -> str:
    """Word how the budget was measured."""
    return "; ".join(METHODS.get(name, name) for name in names)


def finding_how(finding: dict[str, Any], steps_counts: dict[str, int]) -> list[str]:
    """Say how a claim of the summary is known: method, bounds, and the tables that its evidence comes from.

    ``steps_counts`` has the number of counted steps of each kind; the empty name stands for those that train.
    """
    said = []
    steps = count_noun(steps_counts.get(finding["name"], steps_counts[""]), f"{finding['name']} step".strip())
    one = not {",", "-"} & set(finding["ranks"])
    if finding["stall_ns"] >= 0 and finding["confidence"]:
        rank = f" on rank {finding['rank']}" + ("" if one else ", the most affected") if finding["rank"] >= 0 else ""
        said.append(
            f"The time is the mean over the counted steps{rank} ({steps}):"
            f" {span_text(finding['low_ns'], finding['high_ns'])}."
        )
    if finding["method"]:
        said.append(f"Method: {METHODS.get(finding['method'], finding['method'])}.")
    tables = sorted({row["source_table"] for row in finding["evidence"] if row["source_table"]})
    if tables:
        said.append(f"The evidence comes from {listed_text(tables)}.")
    if not said and finding["share_ratio"] >= 0:
        said.append("It is computed from times that the kernel accounted for while the job ran.")
    return said or ["The recording says this directly; nothing was computed."]


def listed_text(names: list[str]) -> str:
    """Join names with commas and ``and``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def wait_how(cut: dict[str, Any]) -> list[str]:
    """Say how a wait is known, and what its cut-out leaves out."""
    if cut["what"] == "batch":
        said = [
            f"Sum of the waits for batches in this step by the budget: {span_text(cut['low_ns'], cut['high_ns'])}."
            f" Method: {METHODS.get(cut['method'], cut['method'])}."
        ]
    else:
        said = [_WAIT_METHODS.get(cut["method"], cut["method"])]
        said.append(
            f"It cost all ranks together {duration_text(cut['total_wait_ns'])}: where a rank waits in several"
            " collectives at once, the oldest counts; time hidden behind compute counts too."
        )
        if cut["cause_kind"] not in ("", "unknown"):
            said.append(
                "The cause is what the late rank did longer than the median of at most 15 other ranks since all of them"
                " were level."
            )
        if cut["shown_count"] < cut["waiting_count"]:
            said.append(
                f"Of {cut['waiting_count']} ranks that waited, the {cut['shown_count']} that waited longest are drawn."
            )
    hidden = sum(lane["hidden_count"] for lane in cut["lanes"])
    close = duration_text(max(lane["close_ns"] for lane in cut["lanes"]))
    said.append(
        "Bars of files and workers are recorded rows, bars of ranks are the same attribution as the budget; neighbours"
        f" of one kind less than {close} apart are one bar."
        + (f" {hidden:,} pieces are too short to draw." if hidden else "")
    )
    return said


def link_method_text(name: str) -> str:
    """Say where the expected time of a transfer comes from."""
    return _LINK_METHODS.get(name, name)


def class_texts() -> list[str]:
    """Name the classes of the heat maps, from nothing up."""
    ends = [*CLASSES[1:], 1.0]
    texts = ["less than 0.1 %", f"less than {percent_text(ends[0])}"]
    return texts + [
        f"{percent_text(low).removesuffix(' %')} to {percent_text(high)}"
        for low, high in zip(CLASSES[1:], ends[1:], strict=True)
    ]


def binned_text(heat: dict[str, Any]) -> str:
    """Say what a cell of the heat maps holds."""
    ranks, steps = heat["ranks_per_cell"], heat["steps_per_cell"]
    what = [_up_to(ranks, "rank"), _up_to(steps, "step")]
    cell = "Each cell is one rank and one step." if ranks == steps == 1 else f"Each cell is {what[0]} by {what[1]}."
    apart = heat["apart_count"]
    if apart:
        who = "The rank that differs most from the others has its own row"
        several = f"The {apart} ranks that differ most from the others have their own rows"
        cell = f"{cell} {who if apart == 1 else several}, on top."
    return (
        f"{cell} Its value is the time of the kind by the length of all its steps. The maps cover"
        f" {count_noun(heat['ranks_count'], 'rank')} and {count_noun(heat['steps_count'], 'step')}, those of the"
        " warm-up included."
    )


def _up_to(count: int, noun: str) -> str:
    return f"one {noun}" if count == 1 else f"up to {count} neighbouring {noun}s"


#: How causes are known.
REPLAYED = (
    "the work of all ranks is one graph, with what each piece waited for; a cause is work without which a replay of"
    " this graph has shorter steps, and what it saves is the difference of both replays"
)


def claims_of(facts: dict[str, Any], *sections: str) -> list[dict[str, Any]]:
    """Return the findings of some sections of the summary, in reading order."""
    return [finding for finding in facts["findings"] if finding["section"] in sections]


def place_of_step(facts: dict[str, Any], step: int) -> str:
    """Return the anchor of what made a step slow: the picture of a wait in it, else its row; empty if it has none."""
    cut_outs = (facts["waits"] or {}).get("cut_outs", ())
    drawn = next((f"wait-{at}" for at, cut in enumerate(cut_outs) if cut["step"] == step), "")
    listed = any(row["step"] == step for row in (facts["slow"] or {}).get("listed", ()))
    return drawn or (f"slow-{step}" if listed else "")


def sentence(said: str) -> str:
    """Return a phrase as a sentence; a name of code at its begin keeps its letters."""
    said = said.strip()
    first = said.partition(" ")[0]
    begin = said[:1] if {"_", "=", "("} & set(first) else said[:1].upper()
    return said and begin + said[1:] + ("" if said.endswith((".", "?", "!")) else ".")
