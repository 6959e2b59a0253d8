"""The gate: bounds of a growth, allowance from run to run, verdicts, what would decide, and baselines."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stashtrace.analysis.compare.baseline import baseline_text, read_baseline
from stashtrace.analysis.compare.change import LEAST_STEPS, RUN_TO_RUN_RATIO, Side, change_of
from stashtrace.analysis.compare.cpu_use import CpuUse
from stashtrace.analysis.compare.gate_verdict import Condition, Gate, Needs, judge
from stashtrace.analysis.compare.job_identity import DECIDING, FIELDS, changed_words, common_facts, differences
from stashtrace.analysis.compare.steps_of_run import KEPT_STEPS, StepsOfRun
from stashtrace.errors import FormatError, MissingDataError, UsageError
from stashtrace.summary.gate_text import gate_lines

MS = 1_000_000
FACTS = {"ranks": 2, "batch": 8, "device": "none", "torch": "2.13.0"}


def run(
    seed: int = 0,
    *,
    steps: int = 60,
    step_ms: float = 40.0,
    spread: float = 0.04,
    between: float = 0.0,
    network: float = 0.0,
    facts: dict[str, Any] | None = None,
    cpu_wait_ms: float | None = None,
) -> StepsOfRun:
    """A run whose steps spread, and whose mean differs from that of other seeds by ``between``, as parts of a step."""
    random = np.random.default_rng(seed)
    level = step_ms * MS * (1 + between * random.standard_normal())
    lengths = np.rint(level + spread * step_ms * MS * random.standard_normal(steps)).astype(np.int64)
    sent = np.full(steps, round(network * step_ms * MS), dtype=np.int64)
    times = {"step": lengths + sent, "compute": lengths}
    if network:
        times["network"] = sent
    ranks = {rank: {kind: float(values.mean()) + rank * MS for kind, values in times.items()} for rank in (0, 1)}
    wait_ns = None if cpu_wait_ms is None else cpu_wait_ms * MS
    return StepsOfRun(f"run {seed}", times, steps, ranks, FACTS if facts is None else facts, wait_ns)


def side(*runs: StepsOfRun) -> Side:
    return Side("side", runs)


def verdict(before: Side, after: Side, *conditions: str, **options: Any) -> Gate:
    return judge(before, after, [Condition.of(text) for text in conditions or ("step+5%",)], **options)


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("step+5%", Condition("step", 5)),
        ("network+2.5%", Condition("network", 2.5)),
        (" Fetch + 0 % ", Condition("fetch", 0)),
    ],
)
def test_conditions(text: str, condition: Condition) -> None:
    assert Condition.of(text) == condition
    assert Condition.of(str(condition)) == condition


@pytest.mark.parametrize("text", ["", "step", "step+5", "step-5%", "+5%", "step+5%%", "step+nan%", "step+1e3%"])
def test_no_conditions(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Condition.of(text)
    assert "form KIND+N%" in str(caught.value)
    assert caught.value.hint


def test_a_condition_of_no_kind() -> None:
    with pytest.raises(UsageError, match="unknown kind 'disk'") as caught:
        Condition.of("disk+5%")
    assert str(caught.value.hint).startswith(
        "did you mean 'storage'? Choose from step; columns of the summary: compute,"
    )
    with pytest.raises(UsageError, match="unknown kind 'a b'"):
        Condition.of("a b+1%")
    with pytest.raises(UsageError, match="unknown kind 'loader'") as caught:
        Condition.of("loader+5%")
    assert str(caught.value.hint).startswith("did you mean 'data' (storage + prep + hand-off)? ")


def test_a_column_of_the_summary_is_the_sum_of_its_kinds() -> None:
    sides = []
    for seed in (1, 2):
        one = run(seed, network=0.1 * seed)
        inside = np.arange(60, dtype=np.int64) * MS // (10 * seed)
        ranks = {rank: {**means, "interconnect": float(inside.mean())} for rank, means in one.ranks_ns.items()}
        sides.append(side(replace(one, times_ns={**one.times_ns, "interconnect": inside}, ranks_ns=ranks)))
    found = change_of(*sides, "link")
    parts = [change_of(*sides, kind) for kind in ("network", "interconnect")]
    assert found.before_ns == sum(part.before_ns for part in parts)
    assert found.change_ns == sum(part.change_ns for part in parts)
    judged = judge(*sides, [Condition.of("link+5%")]).judged[0]
    assert judged.change == found
    assert judged.rank_growth_ns == sum(
        judge(*sides, [Condition.of(f"{kind}+5%")]).judged[0].rank_growth_ns for kind in ("network", "interconnect")
    )
    reported = " ".join(gate_lines(judge(*sides, [Condition.of("link+5%"), Condition.of("data+5%")])))
    assert "link (network + in-host) per step went from" in reported
    assert "data (storage + prep + hand-off) took no time in either job" in reported


def test_a_recording_against_itself_decides_nothing() -> None:
    one = replace(run(1), recording="7ec5b47e96cd4dee")
    assert judge(side(one), side(one), [Condition.of("step+50%")]).verdict == "inconclusive"
    assert judge(side(one), side(replace(one, name="a copy").condensed(10)), [Condition.of("step+50%")]).is_same
    reported = " ".join(gate_lines(judge(side(one), side(one), [Condition.of("step+50%")])))
    assert "both sides are the same recording" in reported
    assert "would decide" not in reported
    # Another recording is not, even if it has the id: a job that was started again keeps it.
    assert not judge(side(one), side(replace(run(2), recording=one.recording)), [Condition.of("step+50%")]).is_same
    assert not judge(side(run(1)), side(run(1)), [Condition.of("step+50%")]).is_same


@pytest.mark.parametrize("between", [0.0, 0.005, 0.01])
def test_equal_runs_are_not_worse_beyond_doubt(between: float) -> None:
    """Runs that differ by the amount of those behind the allowance; with a limit of 0 % nothing else protects."""
    worse = [
        verdict(side(run(seed, between=between)), side(run(seed + 1000, between=between)), "step+0%").verdict == "worse"
        for seed in range(200)
    ]
    assert sum(worse) <= 200 / 20


@pytest.mark.parametrize(("runs", "between"), [(2, 0.01), (3, 0.03), (5, 0.1)])
def test_equal_sides_of_several_runs(runs: int, between: float) -> None:
    """From three runs on a side, they may differ by any amount: they show it."""
    worse = 0
    for seed in range(200):
        sides = [side(*(run(seed * 100 + 10 * at + n, between=between) for n in range(runs))) for at in (0, 1)]
        worse += verdict(*sides, "step+0%").verdict == "worse"
    assert worse <= 200 / 20


def test_a_slow_down_is_worse() -> None:
    gate = verdict(side(run(1)), side(run(2, step_ms=46)), "step+5%", "compute+5%")
    assert (gate.verdict, gate.exit_code) == ("worse", 1)
    assert [one.verdict for one in gate.judged] == ["worse", "worse"]
    assert (
        gate.judged[0].change.low_ns > gate.judged[0].limit_ns == pytest.approx(0.05 * run(1).times_ns["step"].mean())
    )
    assert gate.judged[0].rank in (0, 1)
    assert gate.judged[0].rank_growth_ns == pytest.approx(6 * MS, rel=0.1)


def test_growth_of_steps_without_a_length_is_not_judged() -> None:
    """Steps of a foreign file may begin and end at one moment."""
    with pytest.raises(MissingDataError, match="the steps before have no length"):
        verdict(side(run(1, step_ms=0)), side(run(2)))


def test_percent_are_of_the_step_before_not_of_the_kind() -> None:
    """Network time doubles, from 4 % of the step to 8 %: 4 % of the step."""
    before, after = side(run(1, network=0.04, spread=0.001)), side(run(2, network=0.08, spread=0.001))
    options = {"allowance_ratio": 0.001}
    assert verdict(before, after, "network+3%", **options).verdict == "worse"
    assert verdict(before, after, "network+5%", **options).verdict == "not worse"


def test_a_kind_that_appears() -> None:
    gate = verdict(side(run(1)), side(run(2, network=0.2)), "network+10%")
    assert gate.verdict == "worse"
    assert gate.judged[0].change.before_ns == 0


def test_a_kind_that_is_in_neither_job() -> None:
    gate = verdict(side(run(1)), side(run(2)), "checkpoint+0%")
    assert gate.verdict == "not worse"
    assert gate.judged[0].change.change_ns == 0


def test_faster_is_not_worse() -> None:
    assert verdict(side(run(1)), side(run(2, step_ms=30)), "step+0%").verdict == "not worse"


def test_one_condition_that_is_worse_outweighs_an_inconclusive_one() -> None:
    before, after = side(run(1, network=0.1)), side(run(2, network=0.4))
    gate = verdict(before, after, "compute+1%", "network+5%")
    assert [one.verdict for one in gate.judged] == ["inconclusive", "worse"]
    assert gate.exit_code == 1
    assert verdict(before, after, "compute+1%", "network+90%").exit_code == 5


def test_the_allowance_is_added_with_fewer_than_three_runs() -> None:
    step_ns = float(run(1).times_ns["step"].mean())
    single = change_of(side(run(1)), side(run(2)), "step")
    assert single.source == "steps"
    assert single.allowance_ns == pytest.approx(RUN_TO_RUN_RATIO * step_ns)
    assert single.change_ns - single.low_ns == pytest.approx(single.steps_ns + single.allowance_ns)
    double = change_of(side(run(1), run(3)), side(run(2), run(4)), "step")
    assert double.allowance_ns == pytest.approx(single.allowance_ns / math.sqrt(2), rel=0.01)
    assert change_of(side(run(1)), side(run(2)), "step", allowance_ratio=0.0).allowance_ns == 0
    three = change_of(side(run(1), run(2), run(3)), side(run(4)), "step")
    assert (three.source, three.allowance_ns) == ("runs", 0.0)


def test_three_runs_say_more_than_their_steps() -> None:
    """Steps that hardly spread, runs that do: the bounds are those of the runs."""
    runs = [run(seed, step_ms=40 + shift, spread=0.001) for seed, shift in enumerate((-4, 0, 4))]
    change = change_of(side(*runs), side(run(9, step_ms=43, spread=0.001)), "step")
    assert change.low_ns < 0 < change.high_ns
    assert change.steps_ns > 10 * MS


def test_turns_cancel_what_slows_both() -> None:
    """The machine becomes slower from round to round, by far more than the change is."""
    slow = (0, 5, 12, 20)
    before = side(*(run(n, step_ms=40 + shift, spread=0.002) for n, shift in enumerate(slow)))
    after = side(*(run(n + 50, step_ms=44 + shift, spread=0.002) for n, shift in enumerate(slow)))
    apart, alternate = verdict(before, after), verdict(before, after, by_turns=True)
    assert apart.verdict == "inconclusive"
    assert alternate.verdict == "worse"
    assert alternate.judged[0].change.source == "rounds"
    assert alternate.judged[0].change.steps_ns < apart.judged[0].change.steps_ns / 10


def test_the_steps_that_would_decide_do() -> None:
    """Equal jobs of this number of steps pass in most cases, and those that grew by twice the limit fail in most."""
    for seed in range(20):
        gate = verdict(side(run(seed, spread=0.2)), side(run(seed + 500, spread=0.2)))
        if gate.verdict == "inconclusive":
            break
    needs = gate.judged[0].needs
    assert needs.steps_count > 60
    assert needs.growth_ns in (0, pytest.approx(2 * gate.judged[0].limit_ns))
    for step_ms, decided in ((40.0, "not worse"), (44.0, "worse")):
        verdicts = [
            verdict(
                side(run(pair, steps=needs.steps_count, spread=0.2)),
                side(run(pair + 500, steps=needs.steps_count, spread=0.2, step_ms=step_ms)),
            ).verdict
            for pair in range(60)
        ]
        assert verdicts.count(decided) >= 36


@pytest.mark.parametrize(("steps", "spread"), [(75, 0.15), (200, 0.3)])
def test_the_steps_that_would_decide_are_one_figure(steps: int, spread: float) -> None:
    """Pairs of runs of one job ask for about as many steps, whatever growth each pair happens to show."""
    asked = []
    for pair in range(80):
        gate = verdict(side(run(pair, steps=steps, spread=spread)), side(run(pair + 500, steps=steps, spread=spread)))
        if gate.verdict == "inconclusive":
            asked.append(gate.judged[0].needs.steps_count)
    assert len(asked) >= 30
    low, middle, high = np.percentile(asked, [5, 50, 95])
    assert middle / 1.6 <= low <= high <= 1.6 * middle
    assert all(
        count == int(f"{count:.1e}".partition("e")[0].replace(".", "")) * 10 ** (len(str(count)) - 2) for count in asked
    )


@pytest.mark.parametrize(("between", "runs", "condition"), [(0.007, 1, "step+2%"), (0.03, 3, "step+5%")])
def test_the_runs_that_would_decide_do(between: float, runs: int, condition: str) -> None:
    """Runs that differ as those behind the allowance do; or by more, which three of them show."""

    def pair(seed: int, count: int) -> Gate:
        sides = [side(*(run(seed + 100 * at + n, spread=0.1, between=between) for n in range(count))) for at in (0, 1)]
        return verdict(*sides, condition, by_turns=True)

    asked, decided = [], []
    for seed in range(0, 30_000, 1000):
        first = pair(seed, runs)
        if first.verdict == "inconclusive" and first.judged[0].needs.runs_count:
            asked.append(first.judged[0].needs.runs_count)
            decided.append(pair(seed + 300, asked[-1]).verdict == "not worse")
    assert len(asked) >= 10
    assert max(asked) <= 4 * min(asked)
    assert np.mean(decided) >= 0.6


def test_a_spread_that_hides_the_growth_is_said_to_be_so() -> None:
    needs = verdict(side(run(1, steps=20, spread=3.0)), side(run(2, steps=20, spread=3.0)), "step+1%").judged[0].needs
    assert (needs.steps_count, needs.runs_count, needs.hidden) == (0, 0, True)


def test_more_runs_are_asked_for_where_the_allowance_hides_the_growth() -> None:
    before, after = run(1, steps=2000, spread=0.01), run(2, steps=2000, spread=0.01, step_ms=42.4)
    needs = verdict(side(before), side(after), "step+5%").judged[0].needs
    assert needs.steps_count == 0
    assert needs.runs_count >= 3


def test_nothing_decides_what_is_at_the_limit() -> None:
    before = run(1, steps=2000, spread=0.01)
    after = StepsOfRun("after", {k: np.rint(v * 1.05).astype(np.int64) for k, v in before.times_ns.items()}, 2000)
    needs = verdict(side(before), side(after), "step+5%").judged[0].needs
    assert (needs.steps_count, needs.runs_count, needs.hidden) == (0, 0, False)


def test_what_could_have_been_seen_is_seen_in_four_of_five() -> None:
    pairs, options = 150, {"allowance_ratio": 0.0}
    seen = []
    for seed in range(pairs):
        detectable = verdict(side(run(seed)), side(run(seed + 500)), **options).judged[0].detectable_ns
        after = run(seed + 500, step_ms=40 + detectable / MS)
        seen.append(verdict(side(run(seed)), side(after), **options).verdict == "worse")
    assert 0.7 <= np.mean(seen) <= 0.92


def test_a_single_step_is_inconclusive() -> None:
    gate = verdict(side(run(1, steps=1)), side(run(2, steps=1, step_ms=80)))
    assert gate.verdict == "inconclusive"
    assert (gate.judged[0].needs, gate.judged[0].few_steps) == (Needs(), 1)
    assert math.isinf(gate.judged[0].change.low_ns)


@pytest.mark.parametrize("step_ms", [30.0, 40.0, 60.0])
def test_few_steps_are_inconclusive_however_similar_they_are(step_ms: float) -> None:
    before, few = side(run(1, steps=75)), run(2, steps=LEAST_STEPS - 1, spread=0.0, step_ms=step_ms)
    gate = verdict(before, side(few))
    assert (gate.verdict, gate.judged[0].few_steps) == ("inconclusive", LEAST_STEPS - 1)
    assert verdict(side(few), before).verdict == "inconclusive"
    enough = run(2, steps=LEAST_STEPS, spread=0.0, step_ms=step_ms)
    assert verdict(before, side(enough)).verdict == ("worse" if step_ms > 50 else "not worse")
    assert verdict(before, side(few), "checkpoint+0%").verdict == "not worse"


def test_three_runs_of_few_steps_show_their_spread() -> None:
    sides = [side(*(run(10 * at + n, steps=4, spread=0.01) for n in range(3))) for at in (0, 1)]
    assert verdict(*sides).verdict == "not worse"


def test_growth_that_waits_for_cpus_explain_is_not_beyond_doubt() -> None:
    """4 ms of the 6 ms were spent runnable without a CPU: without them the step may have grown by less than 5 %."""
    before, after = run(1, cpu_wait_ms=0.5), run(2, step_ms=46, cpu_wait_ms=4.5)
    gate = verdict(side(before), side(after))
    assert gate.exit_code == 5
    assert added_ns(gate) == pytest.approx(4 * MS)
    assert verdict(side(before), side(after), by_turns=True).verdict == "worse"
    assert verdict(side(before), side(replace(after, cpu_wait_ns=None))).verdict == "worse"
    assert verdict(side(before), side(replace(after, cpu_wait_ns=0.9 * MS))).verdict == "worse"
    assert verdict(side(before), side(run(2, step_ms=60, cpu_wait_ms=4.5))).verdict == "worse"
    assert verdict(side(before), side(run(2, step_ms=36, cpu_wait_ms=4.5))).verdict == "not worse"


def test_a_baseline_that_waited_for_cpus_proves_no_change_good() -> None:
    before, after = run(1, step_ms=44, cpu_wait_ms=5), run(2, step_ms=41, cpu_wait_ms=0)
    gate = verdict(side(before), side(after))
    assert gate.exit_code == 5
    assert added_ns(gate) == pytest.approx(-5 * MS)
    assert verdict(side(before), side(replace(after, cpu_wait_ns=5.0 * MS))).verdict == "not worse"
    absent = verdict(side(before), side(after), "checkpoint+0%")
    assert absent.verdict == "not worse"


def added_ns(gate: Gate) -> float:
    other = gate.judged[0].other_work
    return other.added_ns


def test_workers_that_waited_for_cpus_explain_growth_too() -> None:
    """The step thread hardly waited, the workers did; nothing shows whose work held the CPUs."""
    before, after = run(1, cpu_wait_ms=0.5), run(2, step_ms=46, cpu_wait_ms=0.5)
    busy = replace(after, worker_wait_ns=5.0 * MS)
    gate = verdict(side(replace(before, worker_wait_ns=1.0 * MS)), side(busy))
    assert gate.exit_code == 5
    assert added_ns(gate) == pytest.approx(4 * MS)
    assert verdict(side(before), side(busy)).verdict == "worse"  # unknown before


class TestOtherWork:
    """Recordings that say how many CPUs other programs used, and how long threads of the job waited for one."""

    QUIET = CpuUse(2.0 * MS, 0.1, 0.0)

    def judged(self, after: CpuUse, *, step_ms: float, before: CpuUse = QUIET, before_ms: float = 40.0) -> Gate:
        return verdict(
            side(replace(run(1, step_ms=before_ms), cpus=before)), side(replace(run(2, step_ms=step_ms), cpus=after))
        )

    def test_load_of_others_is_not_the_change(self) -> None:
        """Four times as long, with 1.4 of the CPUs used by others and threads that waited for most of the growth."""
        gate = self.judged(CpuUse(150.0 * MS, 1.4, 0.0), step_ms=160)
        assert (gate.verdict, gate.exit_code) == ("inconclusive", 5)
        assert added_ns(gate) == pytest.approx(148 * MS)

    @pytest.mark.parametrize(
        ("wait_ms", "others", "stolen", "step_ms", "verdict"),
        [
            # The threads of the job wait for each other: others use as little as before.
            (150.0, 0.1, 0.0, 160, "worse"),
            (150.0, 0.05, 0.0, 160, "worse"),
            # Others took 0.3 CPUs more of 160 ms, 48 ms: the other 70 ms of the growth are the job's.
            (150.0, 0.4, 0.0, 160, "worse"),
            (150.0, 0.9, 0.0, 160, "inconclusive"),
            (2.1, 12.0, 0.0, 60, "worse"),  # on idle CPUs others slow nobody down
            (2.0, 0.1, 0.3, 48, "inconclusive"),  # a hypervisor took more
        ],
    )
    def test_what_others_use_explains(
        self, wait_ms: float, others: float, stolen: float, step_ms: float, verdict: str
    ) -> None:
        assert self.judged(CpuUse(wait_ms * MS, others, stolen), step_ms=step_ms).verdict == verdict

    def test_a_busy_machine_before_proves_no_change_good(self) -> None:
        gate = self.judged(self.QUIET, step_ms=41, before=CpuUse(12.0 * MS, 0.5, 0.0), before_ms=44)
        assert gate.verdict == "inconclusive"
        assert added_ns(gate) == pytest.approx(-10 * MS)
        assert self.judged(self.QUIET, step_ms=41, before=self.QUIET, before_ms=44).verdict == "not worse"

    def test_turns_share_the_load(self) -> None:
        busy = replace(run(2, step_ms=160), cpus=CpuUse(150.0 * MS, 1.4, 0.0))
        assert verdict(side(replace(run(1), cpus=self.QUIET)), side(busy), by_turns=True).verdict == "worse"

    def test_a_side_without_compute_times_is_judged_by_waits_alone(self) -> None:
        busy = replace(run(2, step_ms=160), cpus=CpuUse(150.0 * MS, 1.4, 0.0))
        assert verdict(side(run(1)), side(busy)).verdict == "worse"


@pytest.mark.parametrize("field", DECIDING)
def test_jobs_that_do_not_compare(field: str) -> None:
    other = run(2, facts={**FACTS, field: 16 if field != "device" else "NVIDIA H200"})
    gate = verdict(side(run(1)), side(other))
    assert (gate.verdict, gate.exit_code, gate.judged) == ("not comparable", 4, ())
    assert [one.field.name for one in gate.refused] == [field]
    allowed = verdict(side(run(1)), side(other), allowed=[field])
    assert allowed.verdict != "not comparable"
    assert [one.field.name for one in allowed.differs] == [field]


def test_what_is_not_recorded_is_no_reason_to_refuse() -> None:
    gate = verdict(side(run(1)), side(run(2, facts={**FACTS, "batch": None})))
    assert gate.verdict != "not comparable"
    assert [(one.field.name, one.is_known) for one in gate.differs] == [("batch", False)]


def test_facts_of_several_runs() -> None:
    joined = common_facts([FACTS, {**FACTS, "torch": "2.12.0", "batch": None}])
    assert (joined["ranks"], joined["batch"], joined["torch"]) == (2, 8, "2.13.0 and 2.12.0")
    assert differences(FACTS, FACTS) == []


def test_words_of_commands() -> None:
    assert changed_words("python t.py --lr 1", "python t.py --lr 2 --fast") == (["1"], ["2", "--fast"])


def test_the_names_of_fields_are_one_each() -> None:
    names = [field.name for field in FIELDS]
    assert len(set(names)) == len(names)


class TestBaselines:
    def test_are_what_was_saved(self) -> None:
        more = {
            "worker_wait_ns": 2.5,
            "cpus": CpuUse(3.0, 0.5, 0.01),
            "launch": ("python", "a b.py"),
            "directory": "/x",
        }
        runs = [run(1, network=0.2), replace(run(2, steps=30, cpu_wait_ms=1.5), **more)]
        read = read_baseline(baseline_text(runs, "0.1.0"), "main.json", "main")
        for before, after in zip(runs, read, strict=True):
            assert after.name == "main"
            assert after.steps_count == before.steps_count
            assert after.kinds == before.kinds
            assert all((after.of(kind) == before.of(kind)).all() for kind in before.kinds)
            assert after.ranks_ns == before.ranks_ns
            assert {k: v for k, v in after.facts.items() if v is not None} == before.facts
            for name in ("cpu_wait_ns", *more):
                assert getattr(after, name) == getattr(before, name)

    def test_hold_no_secret(self) -> None:
        """Also where run.json has one, of a trace of another tool."""
        one = replace(
            run(1, facts={**FACTS, "command": "train.py --api-key X1secret s3://me:X1secret@bucket/a"}),
            launch=("torchrun", "train.py", "--token", "X1secret", "https://me:X1secret@host/a?sig=X1secret"),
            directory="/cache/https:/host/a?sig=X1secret",
        )
        text = baseline_text([one], "0.1.0")
        assert "X1secret" not in text
        (read,) = read_baseline(text, "main.json", "main")
        assert read.launch == ("torchrun", "train.py", "--token", "<scrubbed>", "https://host/a")
        assert (read.directory, read.facts["command"]) == (
            "/cache/https:/host/a",
            "train.py --api-key <scrubbed> s3://bucket/a",
        )

    def test_without_the_later_figures_can_be_read(self) -> None:
        content = json.loads(baseline_text([run(1)], "0.1.0"))
        for name in ("worker_wait_ns", "cpus", "launch", "directory"):
            del content["runs"][0][name]
        (read,) = read_baseline(json.dumps(content), "main.json", "main")
        assert (read.worker_wait_ns, read.cpus, read.launch, read.directory) == (None, None, (), "")

    def test_are_small(self) -> None:
        long = run(1, steps=50_001, network=0.2)
        text = baseline_text([long], "0.1.0")
        assert len(text) < 40_000
        (read,) = read_baseline(text, "main.json", "main")
        assert len(read.of("step")) <= KEPT_STEPS
        assert read.steps_count == 50_001
        assert read.of("step").mean() == pytest.approx(long.of("step").mean(), rel=1e-4)
        assert change_of(side(read), side(long), "step").steps_ns == pytest.approx(
            change_of(side(long), side(long), "step").steps_ns, rel=0.2
        )

    def test_of_another_version_say_how_to_save_them_again(self) -> None:
        text = baseline_text([run(1)], "9.9").replace('"stashtrace_baseline":1', '"stashtrace_baseline":2')
        with pytest.raises(FormatError) as caught:
            read_baseline(text, "main.json", "main", "save it again")
        assert str(caught.value) == (
            "main.json is a baseline of version 2, written by stashtrace 9.9; this stashtrace reads version 1"
        )
        assert caught.value.hint == "save it again"

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (("stashtrace_baseline",), True),
            (("stashtrace_baseline",), None),
            (("runs",), []),
            (("runs",), [3]),
            (("runs", 0, "times_ns"), {}),
            (("runs", 0, "times_ns", "step"), []),
            (("runs", 0, "times_ns", "step"), [0] * 60),
            (("runs", 0, "times_ns", "step"), [1.5] * 60),
            (("runs", 0, "times_ns", "step"), [-1] * 60),
            (("runs", 0, "times_ns", "step"), [10**30] * 60),
            (("runs", 0, "times_ns", "compute"), [1]),
            (("runs", 0, "times_ns", "nonsense"), [1] * 60),
            (("runs", 0, "steps_count"), 3),
            (("runs", 0, "steps_count"), "many"),
            (("runs", 0, "ranks_ns"), {"x": {}}),
            (("runs", 0, "ranks_ns"), {"0": {"step": "long"}}),
            (("runs", 0, "facts"), {"ranks": [2]}),
            (("runs", 0, "facts"), 7),
            (("runs", 0, "cpu_wait_ns"), -1),
            (("runs", 0, "cpu_wait_ns"), "long"),
            (("runs", 0, "worker_wait_ns"), -1),
            (("runs", 0, "cpus"), 7),
            (("runs", 0, "cpus"), {"wait_ns": 1}),
            (("runs", 0, "cpus"), {"wait_ns": 1, "others_count": -1, "stolen_ratio": 0}),
            (("runs", 0, "launch"), "python"),
            (("runs", 0, "launch"), [1]),
            (("runs", 0, "directory"), None),
        ],
    )
    def test_that_are_damaged_are_refused(self, path: tuple[Any, ...], value: Any) -> None:
        content = json.loads(baseline_text([run(1)], "0.1.0"))
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises(FormatError) as caught:
            read_baseline(json.dumps(content), "main.json", "main", "save it again")
        assert "main.json" in str(caught.value)
        assert caught.value.hint == "save it again"

    @pytest.mark.parametrize("text", ["", "[]", "{", "{}", "null", "[" * 100_000])
    def test_other_texts_are_refused(self, text: str) -> None:
        with pytest.raises(FormatError):
            read_baseline(text, "main.json", "main")
