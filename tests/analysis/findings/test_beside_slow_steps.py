"""What happened on the host and the device beside a slow step: planted in samples, found by name and amount."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builders import MS
from test_over_time import claims, job
from work_after_meeting import work_after_meeting

from stashtrace.analysis.findings.spikes.spikes import spikes
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.schema.trace import Trace

CPUS = 8
#: The slow step of rank 1, and by how much it is longer.
SLOW, EXTRA = 70, 300 * MS
EVERY = 20 * MS
Rate = Callable[[bool], float]


def made(*counters: tuple[str, Rate], every_ns: int = EVERY, clock: Rate | None = None) -> Trace:
    """A job with one slow step. ``counters``: name -> growth per ns, inside the slow step or not; sampled by rank 0.

    ``clock``: of the device of rank 1.
    """
    build = job(120, sleep=lambda rank, step: EXTRA if (rank, step) == (1, SLOW) else 0)
    begin, end = bounds(build.trace(), SLOW)
    last = bounds(build.trace(), 119)[1]
    at = np.arange(0, last + 2 * every_ns, every_ns)
    inside = np.clip(np.minimum(at[1:], end) - np.maximum(at[:-1], begin), 0, None) / every_ns
    for name, rate in counters:
        grown = np.concatenate([[0.0], np.cumsum(every_ns * (rate(True) * inside + rate(False) * (1 - inside)))])
        build.counter(0, name, dict(zip(at.tolist(), grown.tolist(), strict=True)))
    if clock is not None:
        build.rank(1).gpu(uuid="GPU-1")
        hertz = np.where((at >= begin) & (at < end), clock(True), clock(False))
        build.counter(1, "gpu_sm_clock_hz.GPU-1", dict(zip(at.tolist(), hertz.tolist(), strict=True)))
    return build.trace()


def bounds(trace: Trace, step: int) -> tuple[int, int]:
    table = find_steps(trace)
    (row,) = table.take((table["rank"] == 1) & (table["step"] == step)).rows()
    return row["begin_ns"], row["end_ns"]


def cpu(user: Rate, steal: Rate, own: Rate = lambda slow: 1.0) -> tuple[tuple[str, Rate], ...]:
    """CPUs of the host: used by anybody, taken by the hypervisor, and used by the job."""
    return (
        ("host_user_ns_total", user),
        ("host_system_ns_total", lambda slow: 0.0),
        ("host_idle_ns_total", lambda slow: CPUS - user(slow) - steal(slow)),
        ("host_iowait_ns_total", lambda slow: 0.0),
        ("host_steal_ns_total", steal),
        ("process_user_ns_total", own),
        ("process_system_ns_total", lambda slow: 0.0),
    )


def only(trace: Trace) -> dict[str, object]:
    (row,) = spikes(trace).rows()
    assert (row["step"], row["rank"]) == (SLOW, 1)
    return row


def test_steal() -> None:
    """The hypervisor takes 3 of 8 CPUs; programs outside the job use none."""
    trace = made(*cpu(user=lambda slow: 1.0, steal=lambda slow: 3.0 if slow else 0.0))
    row = only(trace)
    assert row["beside"] == "steal"
    assert row["steal_ratio"] == pytest.approx(3 / CPUS, rel=0.1)
    assert row["other_cpus_count"] == pytest.approx(0.0, abs=0.01)
    (claim,) = claims(trace)
    assert "meanwhile the hypervisor took CPU time" in claim["evidence_text"]


def test_programs_outside_the_job() -> None:
    trace = made(*cpu(user=lambda slow: 4.0 if slow else 1.5, steal=lambda slow: 0.0))
    row = only(trace)
    assert row["beside"] == "other_cpus"
    assert row["other_cpus_count"] == pytest.approx(3.0, rel=0.1)
    assert row["steal_ratio"] == 0.0


@pytest.mark.parametrize(("name", "column"), [("io", "io_pressure"), ("memory", "memory_pressure")])
def test_pressure(name: str, column: str) -> None:
    trace = made((f"host_psi_{name}_some_ns_total", lambda slow: 0.6 if slow else 0.02))
    row = only(trace)
    assert row["beside"] == column
    assert row[f"{column}_ratio"] == pytest.approx(0.6, rel=0.1)


def test_a_lower_clock_of_the_device() -> None:
    row = only(made(clock=lambda slow: 0.9e9 if slow else 1.8e9))
    assert row["beside"] == "sm_clock"
    assert row["sm_clock_hz"] == pytest.approx(0.9e9, rel=0.1)


def test_samples_further_apart_than_steps() -> None:
    """One a second: the amount is that of the second, and the step is still the one that stands out."""
    row = only(made(("host_psi_io_some_ns_total", lambda slow: 0.9 if slow else 0.0), every_ns=400 * MS))
    assert row["beside"] == "io_pressure"
    assert 0.2 < row["io_pressure_ratio"] <= 0.9


def test_what_is_as_usual_or_unknown_is_not_named() -> None:
    always = made(
        *cpu(user=lambda slow: 4.0, steal=lambda slow: 2.0),
        ("host_psi_io_some_ns_total", lambda slow: 0.5),
        ("host_psi_memory_some_ns_total", lambda slow: 0.5),
        clock=lambda slow: 1.2e9,
    )
    assert only(always)["beside"] == ""
    unknown = only(made())
    assert unknown["beside"] == ""
    names = ("steal_ratio", "other_cpus_count", "io_pressure_ratio", "memory_pressure_ratio", "sm_clock_hz")
    assert {unknown[name] for name in names} == {-1.0}


def test_without_other_steps_to_compare_with_nothing_is_named() -> None:
    """The samples begin with the slow step: what was usual before is not known."""
    build = job(90, sleep=lambda rank, step: EXTRA if (rank, step) == (1, SLOW) else 0)
    begin, end = bounds(build.trace(), SLOW)
    build.counter(0, "host_psi_io_some_ns_total", {begin - MS: 0.0, end + MS: 0.8 * (end - begin)})
    row = only(build.trace())
    assert row["io_pressure_ratio"] == pytest.approx(0.8, rel=0.1)
    assert row["beside"] == ""


def test_the_step_in_which_it_grew_is_looked_at() -> None:
    """Rank 1 is late at the end of step 49, with pressure of I/O then; only in step 50 does rank 0 wait for it."""
    build, work, ends_at = work_after_meeting()
    grown = 0.7 * 90 * MS
    build.counter(0, "host_psi_io_some_ns_total", {0: 0.0, work[0]: 0.0, work[1]: grown, ends_at: grown})
    rows = {row["step"]: row for row in spikes(build.trace()).rows()}
    assert rows
    assert all(row["beside"] == "io_pressure" for row in rows.values()), rows
