"""What to try on a job: what `whatif` predicts to help, then settings of which no replay knows the effect."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
from collections.abc import Sequence

from stashtrace.analysis.compare.steps_of_run import STEP, StepsOfRun
from stashtrace.analysis.graph import build
from stashtrace.errors import MissingDataError
from stashtrace.lab.processes import cores_of_ranks
from stashtrace.lab.tune.loader_facts import LoaderFacts, loader_facts
from stashtrace.lab.tune.settings import BUCKET, NCCL, OMP, PINNING, WORKERS, Candidate, Settings
from stashtrace.replay import Answer, gradient_buckets, single_changes, what_if
from stashtrace.replay.changes import BUCKET as BUCKET_CHANGE
from stashtrace.replay.changes import KEPT
from stashtrace.replay.communication.ddp import ddp_facts
from stashtrace.schema.trace import Trace

#: A wait that is a smaller part of a step is not worth the runs of a setting that could only shorten it.
_WORTH_RATIO = 0.03
_PREFETCHED = (4, 8)


def candidates(trace: Trace, steps: StepsOfRun, settings: Settings, cores: Sequence[int]) -> list[Candidate]:
    """Return what to try on top of settings, the most promising first.

    ``trace``, ``steps``: a run with the settings. ``cores``: that the ranks of this host may use.
    """
    loaders = loader_facts(trace)
    predicted = _predicted(trace, loaders)
    # Where a replay says nothing of workers, no number of them is better.
    others = [
        *_of_loaders(steps, loaders, ask_workers=predicted is None),
        *_of_cpus(steps, loaders, cores),
        *_of_nccl(steps),
    ]
    return [one for one in (*(predicted or ()), *others) if settings.get(one.name) != one.value]


def _predicted(trace: Trace, loaders: Sequence[LoaderFacts]) -> list[Candidate] | None:
    """Return the changes of a replay that are settings, those that save most first; None if it predicts nothing."""
    try:
        graph = build(trace)
        run = what_if(graph, [])
    except MissingDataError:
        return None
    if not run.is_reliable:
        return None
    buckets = None
    if "script" not in ddp_facts(trace).sources:  # what the script gives has precedence
        with contextlib.suppress(MissingDataError):
            buckets = gradient_buckets(trace, graph)
    found = [_candidate(answer, trace, loaders) for answer in single_changes(graph, buckets=buckets)]
    return [one for one in found if one is not None]


def _candidate(answer: Answer, trace: Trace, loaders: Sequence[LoaderFacts]) -> Candidate | None:
    """Return the setting that makes a change; None if none does."""
    change = answer.changes[0]
    times = answer.low_ns, answer.high_ns
    if change.quantity == BUCKET_CHANGE:
        present = ddp_facts(trace).bucket_mib
        return Candidate(BUCKET, f"{change.factor:.12g}", f"{present:g}" if present else "", *times)
    if not loaders:
        return None
    present_workers = _workers(loaders)
    if change.quantity == "workers":
        return Candidate(WORKERS, str(round(change.amount or 0)), str(present_workers), *times)
    if change.quantity == KEPT:
        return Candidate(KEPT, "1", "0", *times)
    return None


def _of_loaders(steps: StepsOfRun, loaders: Sequence[LoaderFacts], *, ask_workers: bool) -> list[Candidate]:
    found: list[Candidate] = []
    workers = _workers(loaders)
    if loaders and _share(steps, "data") >= _WORTH_RATIO:
        if ask_workers:
            found.append(Candidate(WORKERS, str(max(2 * workers, 1)), str(workers)))
        if workers:
            present = str(_most(loaders, "prefetch_factor"))
            found += [Candidate("prefetch_factor", str(count), present) for count in _PREFETCHED]
    has_device = steps.facts.get("device") not in (None, "none")
    if loaders and has_device and not _most(loaders, "pin_memory"):
        found.append(Candidate("pin_memory", "1", "0"))
    return found


def _of_cpus(steps: StepsOfRun, loaders: Sequence[LoaderFacts], cores: Sequence[int]) -> list[Candidate]:
    """Return numbers of threads, and a share of the CPUs for each rank."""
    ranks, hosts = steps.facts.get("ranks") or 1, steps.facts.get("hosts") or 1
    on_host = max(ranks // hosts, 1)
    share = max(len(cores) // on_host, 1)
    present = steps.facts.get("threads")
    counts = dict.fromkeys([share, max(share - _workers(loaders), 1), 1])
    found = [Candidate(OMP, str(count), str(present or "")) for count in counts if count != present]
    if hosts == 1 and 1 < on_host <= len(cores):
        shares = cores_of_ranks(cores, on_host)
        found.append(Candidate(PINNING, ";".join(",".join(map(str, share)) for share in shares)))
    return found


def _of_nccl(steps: StepsOfRun) -> list[Candidate]:
    is_used = "nccl" in str(steps.facts.get("backend") or "") and _share(steps, "link") >= _WORTH_RATIO
    return [Candidate(name, value) for name, value in NCCL.items()] if is_used else []


def _share(steps: StepsOfRun, kind: str) -> float:
    return float(steps.of(kind).mean() / max(steps.of(STEP).mean(), 1.0))


def _workers(loaders: Sequence[LoaderFacts]) -> int:
    return _most(loaders, WORKERS)


def _most(loaders: Sequence[LoaderFacts], name: str) -> int:
    """Return the largest value of a setting among the loaders, 0 without one."""
    return max((int(one.now.get(name) or 0) for one in loaders), default=0)
