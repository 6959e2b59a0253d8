"""What the numbers leave out: steps that were not recorded, and other jobs on the same GPUs.

``steps_wanted``, ``steps_kept`` and ``window_steps`` name the steps that there are; ``still_recording`` counts
processes. ``other_trainers`` are processes beside the ranks that made updates (``trainer``), as of a second job or of a
rank that was started again. ``gpu_of_another_job`` goes by the site's account of its GPUs (``gpu_job``); ``name`` is
that job.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.devices.gpu_jobs import GpuJob, gpu_jobs
from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, claim, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.steps.steps import steps
from stashtrace.analysis.steps.window import window_of
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import Phase, ProcessRole
from stashtrace.schema.trace import Trace, run_facts
from stashtrace.units import few_ranks, ranks_text


def left_out_claims(trace: Trace) -> list[Claim]:
    """Return claims about steps that were not wanted, and processes beside the ranks that trained."""
    wanted, losses = run_facts(trace).get("steps", ""), trace.losses
    going_on = int(losses["lost_count"][losses["name_code"] == trace.strings.find("still_recording")].sum())
    claims = []
    if going_on:
        said = "the run goes on: {items_count:process} still recorded when this was made"
        claims.append(claim("machine", "still_recording", said, items_count=going_on))
    if wanted:
        said = "only steps {name} of the job were recorded, counted in optimizer updates"
        claims.append(claim("machine", "steps_wanted", said, name=wanted))
    return claims + _begins_later(trace) + _other_trainers(trace) + _gpus_of_others(trace)


def _begins_later(trace: Trace) -> list[Claim]:
    """Return a claim about a recording of which only some steps in the middle or at the end are kept."""
    window = window_of(trace)
    if window is None or (window.first_step == 0 and window.last_step is None):
        return []
    try:
        numbers = steps(trace)["step"]
    except MissingDataError:
        return []
    if not len(numbers):
        return []
    name = f"{numbers.min()} to {numbers.max()}"
    if run_facts(trace).get("window_of"):
        return [claim("machine", "window_steps", "a window of a run: steps {name} of the job", name=name)]
    said = "steps {name} of the job: the records of earlier ones were dropped, as asked"
    return [claim("machine", "steps_kept", said, name=name)]


def _other_trainers(trace: Trace) -> list[Claim]:
    phases, processes = trace.phases, trace.processes
    updates = GroupBy(phases["process_id"][np.isin(phases["phase_code"], (Phase.OPTIMIZER, Phase.UPDATE_SKIPPED))])
    counts = dict(zip(updates.values.tolist(), updates.sizes.tolist(), strict=True))
    others = np.flatnonzero(processes["role_code"] != ProcessRole.RANK)
    others = others[np.isin(processes["process_id"][others], list(counts))]
    trainers = list[Evidence]()
    for number, row in zip(others.tolist(), processes.take(others).rows(), strict=True):
        said = "{name} (pid {pid}, {updates_count:update})" if len(trainers) < POLICY.trainers_named_count else ""
        own = Facts(name=trace.text(row["name_code"]), pid=row["pid"], updates_count=counts[row["process_id"]])
        trainers.append(fact("trainer", said, "processes", number, **own))
    unnamed = len(trainers) - POLICY.trainers_named_count
    more = f" and {unnamed} more" if unnamed > 0 else ""
    said = f"these numbers leave out other training: {{parts}}{more}; record each job by itself"
    return [claim("machine", "other_trainers", said, parts=trainers, items_count=len(trainers))] if trainers else []


def _gpus_of_others(trace: Trace) -> list[Claim]:
    found: dict[tuple[str, str], list[GpuJob]] = {}
    for one in gpu_jobs(trace):
        if one.is_of_another and one.rank >= 0:
            found.setdefault((one.site_job, one.own_job), []).append(one)
    claims = []
    for (site_job, own_job), devices in found.items():
        ranks, count = ranks_text(sorted({one.rank for one in devices})), len({one.uuid for one in devices})
        gpus = "the GPU {uuid}" if count == 1 else "{items_count} GPUs, {uuid} among them,"
        said = (
            f"the site says that {gpus} of {{few:ranks}} {{items_count:belongs|belong}} to job {{name}}, and this is"
            " job {own_job}: if both run, each slows the other"
        )
        own = Facts(name=site_job, ranks=ranks, items_count=count, few=few_ranks(ranks), uuid=devices[0].uuid)
        rows = [fact("gpu_job", "", "devices", rank=one.rank, name=one.uuid) for one in devices]
        claims.append(claim("machine", "gpu_of_another_job", said, rows, own_job=own_job, **own))
    return claims
