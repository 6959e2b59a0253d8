"""Step threads that wait for a CPU: a verdict from a fifth of the step on, with a reason only where samples show it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import MS, ProcessBuilder, TraceBuilder
from scenes import Verdict, job, verdicts

from stashtrace.analysis.findings import Summary
from stashtrace.analysis.findings.all_claims import claims_of
from stashtrace.analysis.findings.claim_rows import Claim, tables_of
from stashtrace.analysis.findings.rules.contention import contention_claims
from stashtrace.analysis.findings.summary_input import RunFacts, gather
from stashtrace.schema.kinds import TrackKind
from stashtrace.summary.style import Style
from stashtrace.summary.summary_text import render

WHOLE = (0, 1000 * MS)


def sample(process: ProcessBuilder, name: str, part: float, thread: int = 0) -> None:
    """Samples of a counter that grows by ``part`` of the time that goes by."""
    track = process.build.track(process.process_id, thread, name, kind=TrackKind.COUNTER, unit="ns")
    for ts_ns in WHOLE:
        process.build.add("counters", ts_ns=ts_ns, track_id=track, value=part * ts_ns)


def crowded(
    share: float,
    *,
    cpus: int = 2,
    others: float = 0.0,
    idle: float = 0.0,
    threads: int = 1,
    threads_set: str = "",
    busy_threads: int = 1,
    omp: str = "1",
    bound: str = "",
    sleep: int = 0,
) -> RunFacts:
    """Two ranks on one host, each with a worker; the job uses what others and idle time leave of the CPUs."""
    build, _ = job(sleep={0: sleep} if sleep else None)
    for rank in (0, 1):
        process = build.rank(rank).lives(0, 1000 * MS)
        worker = process.worker(0).lives(0, 1000 * MS)
        used = (cpus - others - idle) / 2
        sample(process, "process_user_ns_total", 0.7 * used)
        sample(worker, "process_user_ns_total", 0.3 * used)
        for thread in range(busy_threads):
            sample(process, "thread_run_ns_total", 0.4, thread=10 * rank + thread + 1)
            sample(process, "thread_runqueue_ns_total", 0.2, thread=10 * rank + thread + 1)
        sample(process, "thread_run_ns_total", 0.001, thread=10 * rank + 9)  # it sleeps
        sample(worker, "thread_run_ns_total", 0.3, thread=100 + rank)
        sample(worker, "thread_runqueue_ns_total", 0.1, thread=100 + rank)
        facts = {"torch_threads": str(threads), "omp_num_threads": omp, "torch_threads_set": threads_set}
        for key, value in facts.items() if threads_set else list(facts.items())[:2]:
            build.say(key, value, process.process_id)
    if bound:
        build.say("cores_count", bound)
    for name, part in (("user", cpus - idle), ("system", 0.0), ("idle", idle), ("iowait", 0.0), ("steal", 0.0)):
        sample(build.rank(0), f"host_{name}_ns_total", part)
    found = gather(build.trace())
    waiting = tuple(replace(rank, contention_ratio=share - 0.02 * rank.rank) for rank in found.ranks)
    return replace(found, ranks=waiting)


def contention(facts: RunFacts) -> Verdict:
    (found,) = [verdict for verdict in verdicts(facts) if verdict.kind == "contention"]
    return found


def test_a_fifth_of_the_step_is_a_verdict_and_less_a_note() -> None:
    found = contention(crowded(0.25))
    assert found.text == ("CPU contention: the step threads of ranks 0,1 waited for a CPU for up to 25 % of the step")
    shown = render(Summary.of(crowded(0.25)), Style(), "x")
    assert "\n  ▶ CPU contention: the step threads of ranks 0,1 waited" in shown
    little = render(Summary.of(crowded(0.19)), Style(), "x")
    assert "▶ CPU contention" not in little
    assert "\n  CPU contention: the step threads of ranks 0,1 waited for a CPU for up to 19 %" in little
    assert "ran on, or waited for," not in little


def test_verdicts_stand_in_order_of_size() -> None:
    """Rank 0 is outside its phases for 20 ms of 53, and rank 1 waits for it: 38 % of the step."""
    found = verdicts(crowded(0.3, sleep=20))
    assert [verdict.kind for verdict in found if verdict.share > 0.1] == ["late", "host", "contention"]
    assert [verdict.kind for verdict in verdicts(crowded(0.9, sleep=20))[:3]] == ["contention", "late", "host"]


def test_it_is_named_where_larger_verdicts_leave_no_room() -> None:
    facts = crowded(0.21)
    tables = Summary.of(facts)
    large = [
        Claim("verdict", "save", ranks="0", items_count=1, share_ratio=0.3, stall_ns=9 * MS, text="checkpoints")
        for _ in "abc"
    ]
    claims = [*large, *(claim for claim in claims_of(facts) if claim.section != "verdict"), *contention_claims(facts)]
    findings, evidence = tables_of(claims)
    shown = render(replace(tables, findings=findings, evidence=evidence), Style(), "x")
    assert "▶ CPU contention" not in shown
    assert "\n  CPU contention: the step threads of ranks 0,1 waited for a CPU" in shown
    assert "ran on, or waited for," in shown


@pytest.mark.parametrize(
    ("options", "cause", "said"),
    [
        (
            {"others": 1.4},
            "others",
            [
                "on average 2 threads of the job ran on, or waited for, 2 CPUs; other programs used 1.4 of these",
                "stop other programs on this machine, or record while they are idle",
            ],
        ),
        (
            {"others": 1.4, "threads": 2, "busy_threads": 2, "omp": ""},
            "others",
            [
                "on average 3.2 threads of the job ran on, or waited for, 2 CPUs; other programs used 1.4 of these",
                "2 ranks began with 2 torch threads each (OMP_NUM_THREADS is not set), 4 for 2 CPUs that other programs"
                " use, too: try OMP_NUM_THREADS=1",
                "stop other programs on this machine, or record while they are idle",
            ],
        ),
        (
            {},
            "workers",
            [
                "on average 2 threads of the job ran on, or waited for, 2 CPUs",
                "2 ranks and 2 loader workers share 2 CPUs: workers account for 0.8 of these threads; cheaper decoding"
                " or more CPUs would help",
            ],
        ),
        (
            {"cpus": 8, "threads": 8, "busy_threads": 6, "omp": ""},
            "threads",
            [
                "on average 8 threads of the job ran on, or waited for, 8 CPUs",
                "2 ranks began with 8 torch threads each (OMP_NUM_THREADS is not set), 16 for 8 CPUs:"
                " try OMP_NUM_THREADS=4",
            ],
        ),
        (
            {"cpus": 8, "threads": 6, "busy_threads": 6, "omp": "6", "bound": "4"},
            "threads",
            [
                "on average 8 threads of the job ran on, or waited for, 4 CPUs",
                "2 ranks began with 6 torch threads each (OMP_NUM_THREADS=6), 12 for 4 CPUs: try OMP_NUM_THREADS=2",
            ],
        ),
        (
            {"cpus": 8, "threads": 1, "threads_set": "8", "busy_threads": 6},
            "threads",
            [
                "on average 8 threads of the job ran on, or waited for, 8 CPUs",
                "2 ranks set 8 torch threads each (torch.set_num_threads), 16 for 8 CPUs: try torch.set_num_threads(4)",
            ],
        ),
        (
            {"cpus": 8, "others": 5.0, "bound": "2"},
            "others",
            [
                "on average 2 threads of the job ran on, or waited for, 2 CPUs; other programs used 5 of the host's 8",
                "stop other programs on this machine, or record while they are idle",
            ],
        ),
        (
            {"cpus": 8, "threads": 8, "busy_threads": 1, "omp": ""},  # torch's threads sleep
            "",
            ["on average 2 threads of the job ran on, or waited for, 8 CPUs"],
        ),
        (
            {"cpus": 8, "idle": 6.0},
            "limit",
            [
                "on average 2 threads of the job ran on, or waited for, 8 CPUs",
                "meanwhile 75 % of the CPU time of the host was idle: look for a limit on the job's CPUs"
                " (quota of a container, pinned threads)",
            ],
        ),
    ],
)
def test_the_reason_is_what_the_samples_show(options: dict[str, float], cause: str, said: list[str]) -> None:
    facts = crowded(0.3, **options)  # type: ignore[arg-type]
    assert list(contention(facts).evidence) == said
    rows = [row for row in Summary.of(facts).findings.rows() if row["kind"] == "contention"]
    assert [row["cause_kind"] for row in rows] == [cause]


def test_without_samples_no_reason_is_named() -> None:
    facts = gather(job()[1])
    waiting = replace(facts, ranks=tuple(replace(rank, contention_ratio=0.4) for rank in facts.ranks))
    assert contention(waiting).evidence == ()


def test_a_run_that_is_compute_bound_says_so_before() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(12):
        begin = step * 100 * MS
        rank.phase("forward", begin, begin + 60 * MS, runqueue=(step * 30 * MS, step * 30 * MS + 20 * MS))
        rank.phase("backward", begin + 60 * MS, begin + 90 * MS)
        rank.phase(
            "optimizer", begin + 90 * MS, begin + 100 * MS, runqueue=(step * 30 * MS + 25 * MS, (step + 1) * 30 * MS)
        )
    assert [verdict.kind for verdict in verdicts(build.trace())] == ["compute_bound", "contention"]
    assert (
        "rank 0's step thread waited for a CPU for 30 % of the step (counted as compute)"
        in contention(gather(build.trace())).text
    )
