"""How and where the job ran, what the numbers leave out, and work that costs no step time.

``uneven_steps`` has a row ``made_steps`` for each number of steps, with the ranks of ``name`` that made it, and
``hosts`` one (``host``) for each host. ``thinned`` means that ``--event-budget`` left steps without timing events.

``steps_wanted``, ``steps_kept`` and ``window_steps`` name the steps that there are; ``still_recording`` counts
processes. ``other_trainers`` are processes besides the ranks that made updates (``trainer``), as of a second job or a
rank that was started again. ``gpu_of_another_job`` goes by the site's account of its GPUs (``gpu_job``); ``name`` is
that job.

``hidden`` becomes a stall if what hides it becomes faster. ``background_saves`` are the checkpoints that threads of the
ranks of ``name`` wrote while steps went on: their mean, and the longest. ``staged`` counts opens.
"""

from __future__ import annotations

import numpy as np

from stashtrace.analysis.devices.device_identity import GpuJob, gpu_jobs
from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, claim, fact
from stashtrace.analysis.findings.rules.losses import cut_ranks
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.io.staging import staged_opens, used_copies
from stashtrace.analysis.steps.steps import steps_if_any
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.analysis.steps.window import window_of
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import Phase, PhaseFlag, ProcessRole
from stashtrace.schema.trace import EMULATED, Trace, facts_named, run_facts
from stashtrace.text.units import few_ranks, ranks_text


def uneven_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about ranks that made fewer steps than others."""
    made = _made_steps(facts) if facts.ranks else {}
    if not made or max(made.values()) - min(made.values()) <= POLICY.uneven_count:
        return []
    ranks: dict[int, list[int]] = {}
    for rank, count in sorted(made.items(), key=lambda item: (-item[1], item[0])):
        ranks.setdefault(count, []).append(rank)
    rows = list[Evidence]()
    for count, of in ranks.items():
        said = "{name:ranks} made {items_count:step}" if len(rows) < POLICY.step_counts_named_count else ""
        rows.append(fact("made_steps", said, "steps", items_count=count, name=ranks_text(of)))
    unnamed = len(rows) - POLICY.step_counts_named_count
    more = f" and {unnamed} other numbers" if unnamed > 0 else ""
    said = f"the ranks did not make the same number of steps: {{parts}}{more}"
    return [claim("machine", "uneven_steps", said, parts=rows, items_count=max(made.values()))]


def _made_steps(facts: RunFacts) -> dict[int, int]:
    """Return how many steps that train each rank made, warm-up included; a cut file does not show it."""
    table = facts.tables["step_kinds"]
    table = table.take((table["rank"] >= 0) & ~np.isin(table["kind"], QUIET_KINDS))
    made: dict[int, int] = {}
    for row in table.take(~np.isin(table["rank"], list(cut_ranks(facts.trace)))).rows():
        made[row["rank"]] = made.get(row["rank"], 0) + row["steps_count"] + row["warmup_count"]
    return made


def steal_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about the CPU time that the hypervisor of a host took for others."""
    hosts = facts.trust.hosts
    worst = max(hosts, key=lambda host: hosts[host].steal_ratio, default="")
    if not worst or hosts[worst].steal_ratio <= POLICY.steal_ratio:
        return []
    said = "host steal: the hypervisor took {share_ratio:percent} of the CPU time of {name}"
    return [claim("machine", "steal", said, name=worst, share_ratio=hosts[worst].steal_ratio)]


def thinned_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about steps that the event budget left without timing events."""
    if not facts.thinned_count:
        return []
    said = "only {items_count} of {all_count} steps have timing events (--event-budget); the shares are of these"
    whole = facts.steps_count + facts.thinned_count
    return [claim("machine", "thinned", said, items_count=facts.steps_count, all_count=whole)]


def emulated_claims(trace: Trace) -> list[Claim]:
    """Return a claim about benchmarks that sleep instead of computing: the compute of their steps is not real."""
    said = "compute is emulated: {name} sleeps for as long as a real step would compute"
    names = sorted({name for _, name in facts_named(trace, EMULATED)})
    return [claim("machine", "emulated_compute", said, name=name) for name in names[:1]]


def restart_claims(trace: Trace) -> list[Claim]:
    """Return a claim about the other starts of an elastic job, whose ranks these are not."""
    rows = trace.losses.take(trace.losses["name_code"] == trace.strings.find("other_starts"))
    texts = [trace.text(code) for code in rows["advice_code"].tolist()]
    count = int(rows["lost_count"].sum())
    return [claim("machine", "restarts", "{name}", items_count=count, name=text) for text in texts[:1]]


def outlived_claims(trace: Trace) -> list[Claim]:
    """Return a claim about processes of the command that still ran when the recording was closed."""
    pids = [pid for pid in run_facts(trace).get("outlived_by", "").split(", ") if pid]
    who, it = ("a process", "it") if len(pids) == 1 else ("{items_count} processes", "they")
    said = f"{who} still ran when the recording was closed (pid {{name}}): what {it} did later is not in it"
    return [claim("machine", "outlived", said, items_count=len(pids), name=", ".join(pids))] if pids else []


def host_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about the ranks of each host, if there are several hosts."""
    hosts = facts.hosts
    if len(hosts) < 2:
        return []
    rows = list[Evidence]()
    for host, ranks in hosts.items():
        known, others = sorted({r for r in ranks if r >= 0}), sum(r < 0 for r in ranks)
        named = ranks_text(known)
        short = len(named) <= POLICY.ranks_of_host_characters
        parts = ["rank{ranks_count:|s} {ranks}" if short else "{ranks_count:rank}"] if known else []
        if others:
            parts.append("{others_count:other process}" if known else "{others_count:process} without a rank")
        said = f"{{host}} {' and '.join(parts)}" if len(rows) < POLICY.hosts_named_count else ""
        figures = Facts(host=host or "(not named)", ranks=named, ranks_count=len(known), others_count=others)
        rows.append(fact("host", said, "processes", **figures))
    unnamed = len(rows) - POLICY.hosts_named_count
    said = f"hosts: {{parts}}{f' and {unnamed} more' if unnamed > 0 else ''}"
    return [claim("machine", "hosts", said, parts=rows, items_count=len(hosts))]


def left_out_claims(trace: Trace) -> list[Claim]:
    """Return claims about steps that were not wanted, and processes other than the ranks that trained."""
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
    table = steps_if_any(trace)
    if table is None or not len(table):
        return []
    numbers = table["step"]
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
        said = "{name} (pid {pid}, {updates_count:update})" if len(trainers) < POLICY.named_count else ""
        facts = Facts(name=trace.text(row["name_code"]), pid=row["pid"], updates_count=counts[row["process_id"]])
        trainers.append(fact("trainer", said, "processes", number, **facts))
    unnamed = len(trainers) - POLICY.named_count
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
        facts = Facts(name=site_job, ranks=ranks, items_count=count, few=few_ranks(ranks), uuid=devices[0].uuid)
        rows = [fact("gpu_job", "", "devices", rank=one.rank, name=one.uuid) for one in devices]
        claims.append(claim("machine", "gpu_of_another_job", said, rows, own_job=own_job, **facts))
    return claims


_HIDDEN = ("loading", "communication", "copy", "checkpoint")


def hidden_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about the work that the steps hide."""
    if not facts.ranks:
        return []
    table = facts.tables["hidden"]
    counted = table.take(np.isin(table["step"], facts.tables["steps"]["step"]))
    if not len(counted):
        return []
    least_ns = POLICY.hidden_ratio * float(counted["wall_ns"].mean())
    amounts = {name: float(counted[f"hidden_{name}_ns"].mean()) for name in _HIDDEN}
    rows = [
        fact("hidden", "{kind} {amount_ns:time}", "hidden", amount_ns=ns, kind=name)
        for name, ns in amounts.items()
        if ns >= least_ns
    ]
    saves = _background_saves(facts.trace)
    said = "hidden behind the step: {parts} a step" if rows else ""
    return [claim("beside", "hidden", said, saves, parts=rows)] if rows or saves else []


def _background_saves(trace: Trace) -> list[Evidence]:
    phases = trace.phases
    mine = phases.take(
        (phases["phase_code"] == Phase.CHECKPOINT) & ((phases["phase_flags"] & PhaseFlag.BACKGROUND) != 0)
    )
    if not len(mine):
        return []
    lengths = mine["end_ns"] - mine["begin_ns"]
    rank_of = trace.processes.lookup("process_id", "rank")
    each = " each, the longest {longest_ns:time}" if len(mine) > 1 else ""
    said = f"{{name:ranks}} wrote {{items_count:checkpoint}} in the background: {{amount_ns:time}}{each}"
    facts = Facts(items_count=len(mine), amount_ns=float(lengths.mean()), longest_ns=int(lengths.max()))
    ranks = ranks_text(sorted({rank_of[process] for process in mine["process_id"].tolist()}))
    return [fact("background_saves", said, "phases", name=ranks, **facts)]


def staged_claims(trace: Trace) -> list[Claim]:
    """Return a claim about staged copies and whether the job opened them."""
    if not used_copies(trace):
        return []
    count = staged_opens(trace)
    said = "no open was served by a copy: the job opens the files under names that are not in the list, or not at all"
    said = "staged: {items_count:open} served by copies" if count else said
    return [claim("beside", "staged", said, items_count=count)]
