"""The files of a run without steps, and why it has none.

``io_calls`` counts all calls, ``metadata_calls`` has the part of their time in opens, closes and look-ups,
``file_calls`` the files that took longest. ``steps_unknown``, ``no_step_collectors``, ``isolated_python`` (``name``:
the option) and ``no_updates`` say why there are no steps.
"""

from __future__ import annotations

import itertools

import numpy as np

from stashtrace.analysis.collectives.matching import is_imported
from stashtrace.analysis.findings.claim_rows import Claim, Facts, claim, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.steps.threads import how_to_get_steps
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import READS, WRITES, IoOp
from stashtrace.schema.trace import PROCESSES, Trace, facts_named, run_facts

#: Calls that move bytes; the others open, close and look up.
_MOVING_OPS = (*READS, *WRITES, IoOp.RECV, IoOp.SEND, IoOp.FSYNC, IoOp.FFLUSH, IoOp.MSYNC)


def files_claims(trace: Trace) -> list[Claim]:
    """Return claims about the files of a run without steps: all I/O, and the files that took longest."""
    summed = trace.io_totals
    if not trace.io_rows_count and not len(summed):
        if is_imported(trace):
            return []  # the other tool may record no files
        return [claim("files", "no_files", "no file was read or written by the recorded processes")]
    looked_up = int(summed["other_ns"].sum())
    moved = int(summed["read_bytes"].sum() + summed["write_bytes"].sum())
    size = len(trace.strings)
    files = GroupBy.numbered(summed["path_code"], size)
    spent = files.sum(summed["read_ns"] + summed["write_ns"] + summed["other_ns"])
    calls = files.sum(summed["opens_count"] + summed["reads_count"] + summed["writes_count"])
    for io in trace.io_pieces():
        moved += int(np.maximum(io["result_bytes"], 0).sum())
        files = GroupBy.numbered(io["path_code"], size)
        spent += files.sum(io["end_ns"] - io["begin_ns"])
        calls += files.sizes
        looked_up += int((io["end_ns"] - io["begin_ns"])[~np.isin(io["op_code"], _MOVING_OPS)].sum())
    facts = Facts(items_count=int(calls.sum()), moved_bytes=moved, amount_ns=int(spent.sum()))
    facts |= {"processes_count": stated_processes(trace) or len(np.unique(trace.processes["process_id"]))}
    said = (
        "{items_count:I/O call} of {processes_count:process} moved {moved_bytes:bytes} and took {amount_ns:time}"
        " in total"
    )
    rows = [fact("io_calls", said, "io", **facts)]
    share = looked_up / max(facts["amount_ns"], 1)
    if share >= POLICY.look_ups_ratio:
        said = (
            "{amount_ns:time} of that ({part_ratio:percent}) in opening, closing and looking up files"
            ", not in moving bytes"
        )
        rows.append(fact("metadata_calls", said, "io", amount_ns=looked_up, part_ratio=share))
    used = np.flatnonzero(calls)
    for code in used[np.argsort(-spent[used], kind="stable")[: POLICY.named_count]].tolist():
        said = "{items_count:call}, {amount_ns:time}, on {name:path}"
        of_file = Facts(amount_ns=int(spent[code]), items_count=int(calls[code]), name=trace.text(code))
        rows.append(fact("file_calls", said, "io", **of_file))
    return [claim("files", "files", "", rows, items_count=facts["items_count"])]


def stated_processes(trace: Trace) -> int:
    """Return how many processes the files say the job had, 0 if they do not say; files of single processes add up."""
    return sum(int(text) for _, text in facts_named(trace, PROCESSES) if text.isdecimal())


def without_steps(trace: Trace) -> Claim:
    """Return a claim about why a run may have no steps."""
    facts = run_facts(trace)
    if "no_times" in facts or "imported" in facts:
        return claim("files", "steps_unknown", "{name}", name=how_to_get_steps(trace))
    collectors = facts.get("collectors", "").split()
    if collectors and "torch_step" not in collectors and "annotations" not in collectors:
        said = "no step can be seen: --collectors left out torch_step and annotations"
        return claim("files", "no_step_collectors", said)
    option = _isolating_option(trace)
    if option is not None:
        said = "`python {name}` ignores PYTHONPATH, so its steps cannot be seen"
        return claim("files", "isolated_python", said, name=option)
    said = "steps are seen where a torch optimizer or stashtrace.step() is called; see `stashtrace doctor`"
    return claim("files", "no_updates", said)


def _isolating_option(trace: Trace) -> str | None:
    """Return the option that kept a Python of the job from loading the probes, None if there is none."""
    for words in (text.split() for _, text in facts_named(trace, "argv")):
        if not words or "python" not in words[0].rpartition("/")[2]:
            continue
        options = itertools.takewhile(lambda word: word.startswith("-") and word not in ("-c", "-m"), words[1:])
        for option in options:
            if not option.startswith("--") and set(option[1:]) & set("IES"):
                return option
    return None
