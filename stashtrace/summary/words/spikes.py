"""Templates of the claim about slow steps."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.analysis.findings.spikes.spike_claims import AS_IT_RUNS
from stashtrace.summary.words.change_templates import behind_it, changed_time
from stashtrace.summary.words.template_parts import Finding, Row
from stashtrace.text import count_noun
from stashtrace.units import duration_text, percent_text

#: Said of a rank that others wait for where its records do not say why.
NOTHING_LONGER = "of which nothing recorded takes longer"
#: Name in ``spikes.beside`` -> what was so in those steps.
_BESIDE = {
    "gc": "garbage was collected",
    "background_save": "a checkpoint was written in the background",
    "cpu_contention": "the step thread waited for a CPU",
    "evaluation": "another rank evaluated",
    "epoch_begin": "a loader ended or began anew",
    "steal": "the hypervisor took CPU time",
    "other_cpus": "programs outside the job used CPUs",
    "io_pressure": "tasks of the host waited for I/O",
    "memory_pressure": "tasks of the host waited for memory",
    "sm_clock": "the GPU's clock was lower",
}


def slow_steps(f: Finding) -> str:
    """Say how many steps are slow, by how much, and whose time grew in them."""
    at = f.evidence[0]
    count, named = at["items_count"], at["name"]
    part = f"{percent_text(f.row['share_ratio'])} of the time of all steps"
    longer = f"{duration_text(at['amount_ns'])} longer than others like"
    if f.row["name"] == AS_IT_RUNS:
        return f"step {named} took {duration_text(f.row['stall_ns'])}, {longer} it{_mark(f)} {what_grew(f)}"
    if count == 1:
        return f"step {named} takes {longer} it, {part}{_mark(f)} {what_grew(f)}"
    more = ", ..." if count > len(named.split(", ")) else ""
    which = f"{count} of {count_noun(at['of_count'], 'step')} ({named}{more})"
    return f"{which} take {longer} them (median), {part}{_mark(f)} {what_grew(f)}"


def _mark(f: Finding) -> str:
    return ";" if f.first("awaited_slowly") is None and f.first("grew_in") is None else ":"


def what_grew(f: Finding) -> str:
    """Say whose time grew in the slow steps of a claim."""
    waits = f.first("awaited_slowly")
    if waits is not None:
        rank = f"rank {waits['rank']}" if waits["rank"] >= 0 else "a rank"
        return f"{_in_some(waits)}others wait for {rank}, {NOTHING_LONGER}"
    grew = f.first("grew_in")
    if grew is None:
        return "no kind of time of one rank grows in most of them"
    return f"{_in_some(grew)}{changed_time(f)[1]}"


def _in_some(row: Row) -> str:
    return "" if row["items_count"] == row["of_count"] else f"in {row['items_count']} of them "


def behind_slow(row: Row, f: Finding) -> str:
    """Say what the extra time of slow steps goes to."""
    some = "" if row["items_count"] == row["of_count"] else f", in {row['items_count']} of {row['of_count']}"
    return behind_it(row, f, whole_ns=row["high_ns"]) + some


def made_by_worker(row: Row, f: Finding) -> str:
    """Say which worker made the batch that a slow step waited for."""
    return f"its worker {row['worker_id']} made that batch"


def waited_for_slow(row: Row, f: Finding) -> str:
    """Say who waited for the rank that made a step slow."""
    waiting = row["name"]
    one = waiting.isdecimal()
    longest = duration_text(row["amount_ns"])
    return f"rank {waiting} waits {longest} for it" if one else f"ranks {waiting} wait up to {longest} for it"


def beside_slow(row: Row, f: Finding) -> str:
    """Say what was beside slow steps."""
    if row["of_count"] == 1:
        return f"meanwhile {_BESIDE[row['kind']]}"
    some = "all" if row["items_count"] == row["of_count"] else str(row["items_count"])
    return f"in {some} of these {row['of_count']} steps {_BESIDE[row['kind']]}"
