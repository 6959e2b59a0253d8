"""The tracer's cost in the summary: which parts are in it, and its upper end. From files with known rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stash_files import StashWriter, ms, write_run_json

from stashtrace.analysis.findings import Summary
from stashtrace.analysis.findings.rules import trust
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.summary_input import gather
from stashtrace.cli import main
from stashtrace.loading.load import load_trace
from stashtrace.schema.kinds import ThreadRole
from stashtrace.summary.style import Style
from stashtrace.summary.summary_text import render

USED_NS = 1_000_000_000


def run_of(folder: Path, *, probes: tuple[int, ...] = (), calls: int = 0, samples: int = 2, tracers: int = 1) -> Path:
    """A process that used one second of CPU time, and said so in ``samples`` samples."""
    stash = StashWriter(folder)
    stash.sync(0, 1000)
    for tid in range(900, 900 + tracers):
        stash.add("thread_info", [stash.row("thread_info", tid=tid, role_code=ThreadRole.TRACER)], tid=tid)
    used = [(ms(n), USED_NS * n // (samples - 1)) for n in range(samples)]
    stash.add("process_sample", [stash.row("process_sample", ticks=at, user_ns=ns) for at, ns in used])
    for value in probes:
        key, text = stash.intern("probe_cost_ns"), stash.intern(str(value))
        stash.add("metadata", [stash.row("metadata", ticks=ms(900), key_id=key, value_id=text)])
    if calls:
        path = stash.intern("/data/a")
        rows = [
            stash.row("io_op", begin_ticks=ms(1 + n / 1000), duration_ticks=500, path_id=path) for n in range(calls)
        ]
        stash.add("io_op", rows)
    stash.save()
    write_run_json(folder)
    return folder


def process_of(
    folder: Path, pid: int, facts: dict[str, int], *, ppid: int = 1, incarnation: int = 0, calls: int = 0
) -> None:
    """A process without samples: it says at its end what it used."""
    stash = StashWriter(folder, pid=pid, ppid=ppid, incarnation=incarnation)
    stash.sync(0, 1000)
    rows = [
        stash.row("metadata", ticks=ms(900), key_id=stash.intern(key), value_id=stash.intern(str(value)))
        for key, value in facts.items()
    ]
    stash.add("metadata", rows)
    path = stash.intern("/data/a")
    reads = [stash.row("io_op", begin_ticks=ms(1 + n / 1000), duration_ticks=500, path_id=path) for n in range(calls)]
    stash.add("io_op", reads)
    stash.save()


def own_cost(folder: Path) -> trust.OwnCost:
    return trust.own_cost(load_trace(folder))


def test_the_probes_are_in_it(tmp_path: Path) -> None:
    wakes_ns = 2 * POLICY.wake_most_ns
    found = own_cost(run_of(tmp_path, probes=(4_000_000, 10_000_000)))
    assert found.least_ratio == pytest.approx(10_000_000 / USED_NS), "what was said last counts, and once"
    assert found.most_ratio == pytest.approx((10_000_000 * POLICY.probe_most_ratio + wakes_ns) / USED_NS)


def test_hooks_count_by_their_records(tmp_path: Path) -> None:
    found = own_cost(run_of(tmp_path, calls=300))
    assert found.least_ratio == pytest.approx(300 * POLICY.hook_ns / USED_NS)
    assert found.most_ratio > 300 * POLICY.hook_most_ns / USED_NS


def test_each_wake_up_raises_the_upper_end_alone(tmp_path: Path) -> None:
    few, many = own_cost(run_of(tmp_path / "few", samples=2)), own_cost(run_of(tmp_path / "many", samples=12))
    assert few.least_ratio == many.least_ratio == 0
    added = many.most_ratio - few.most_ratio
    assert added == pytest.approx(10 * POLICY.wake_most_ns / USED_NS)


def test_each_thread_of_ours_wakes_up_for_a_sample(tmp_path: Path) -> None:
    """One drains, one reads /proc; files of before have one thread for both."""
    one, two = (own_cost(run_of(tmp_path / str(n), tracers=n)) for n in (1, 2))
    assert one.most_ratio == pytest.approx(2 * POLICY.wake_most_ns / USED_NS)
    assert two.most_ratio == pytest.approx(2 * 2 * POLICY.wake_most_ns / USED_NS)


def test_the_summary_says_both_ends(tmp_path: Path) -> None:
    facts = gather(load_trace(run_of(tmp_path, probes=(4_000_000,))))
    assert "own cost 0.4 to 1 % of 1.00 s CPU, mostly probes" in render(Summary.of(facts), Style(), "run")


def test_the_summary_says_what_of_it_lies_in_the_steps(tmp_path: Path) -> None:
    known = trust.Trust(own_cost=trust.OwnCost(1e9, {"probes": (2e6, 6e6), "hooks": (0.0, 0.0)}, steps_count=4))
    trace = load_trace(run_of(tmp_path))
    (cost,) = [one for one in trust.trust_claims(trace, known) if one.kind == "own_cost"]
    assert cost.facts["step_ns"] == 1_500_000
    assert cost.text.endswith("mostly probes: at most 1.50 ms of a step")
    threads = trust.Trust(own_cost=trust.OwnCost(1e9, {"recorder threads": (2e6, 6e6)}, steps_count=4))
    (cost,) = [one for one in trust.trust_claims(trace, threads) if one.kind == "own_cost"]
    assert cost.text.endswith("mostly recorder threads")


def test_info_lists_the_parts_and_their_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, probes=(4_000_000,), calls=20_000)
    assert main(["info", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("own cost"))
    said = [" ".join(line.split()) for line in lines[at : at + 4]]
    assert said == [
        "own cost 0.5 to 2 % of 1.00 s of CPU time, that of all processes from start to end:",
        "probes 4.00 to 12.0 ms 0.4 to 1 % with steps",
        "recorder threads 0 ns to 100 us 0 to <0.1 % with time",
        "hooks 800 us to 3.00 ms 0.1 to 0.3 % with calls on files and waits, most of them at the start",
    ]


def test_processes_without_samples_count_by_what_they_say_at_their_end(tmp_path: Path) -> None:
    process_of(tmp_path, 100, {"cpu_ns": 5_000_000, "children_cpu_ns": 0}, calls=300)
    write_run_json(tmp_path)
    assert own_cost(tmp_path).least_ratio == pytest.approx(300 * POLICY.hook_ns / 5_000_000)


def test_a_sampled_process_counts_once_and_by_its_last_word(tmp_path: Path) -> None:
    run_of(tmp_path, calls=300)
    process_of(tmp_path, 101, {"cpu_ns": 1_000_000_000})
    assert own_cost(tmp_path).least_ratio == pytest.approx(300 * POLICY.hook_ns / (USED_NS + 1_000_000_000))


def test_children_that_were_waited_for_count_once(tmp_path: Path) -> None:
    # 100 waited for 101, for an untraced child of 3 ms and for a vfork child of 4 ms; 101 waited for one of 2 ms.
    process_of(tmp_path, 100, {"cpu_ns": 1_000_000, "children_cpu_ns": 19_000_000}, calls=1000)
    process_of(tmp_path, 101, {"cpu_ns": 10_000_000, "children_cpu_ns": 2_000_000}, ppid=100)
    write_run_json(tmp_path)
    assert own_cost(tmp_path).least_ratio == pytest.approx(1000 * POLICY.hook_ns / 20_000_000)


def test_a_killed_child_counts_by_what_its_parent_waited_for(tmp_path: Path) -> None:
    process_of(tmp_path, 100, {"cpu_ns": 1_000_000, "children_cpu_ns": 9_000_000})
    process_of(tmp_path, 101, {}, ppid=100, calls=1000)
    write_run_json(tmp_path)
    assert own_cost(tmp_path).least_ratio == pytest.approx(1000 * POLICY.hook_ns / 10_000_000)


def test_images_of_one_process_count_once(tmp_path: Path) -> None:
    process_of(tmp_path, 100, {"cpu_ns": 2_000_000}, calls=100)
    process_of(tmp_path, 100, {"cpu_ns": 8_000_000}, incarnation=1)
    write_run_json(tmp_path)
    assert own_cost(tmp_path).least_ratio == pytest.approx(100 * POLICY.hook_ns / 8_000_000)


def test_without_any_cpu_time_it_is_not_measured(tmp_path: Path) -> None:
    process_of(tmp_path, 100, {}, calls=100)
    write_run_json(tmp_path)
    assert own_cost(tmp_path).least_ratio == -1


BUSY_VFORK_CHILD = r"""
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
  pid_t child = vfork();
  if (child == 0) {
    int file = open("/dev/zero", O_RDONLY);
    char bytes[16];
    for (int i = 0; i < 20000; i++)
      if (read(file, bytes, sizeof bytes) != sizeof bytes) _exit(3);
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  return status != 0;
}
"""


def test_reads_of_a_vfork_child_are_set_against_its_time(tmp_path: Path) -> None:
    source, program, run = tmp_path / "busy.c", tmp_path / "busy", tmp_path / "run"
    source.write_text(BUSY_VFORK_CHILD)
    subprocess.run(["cc", "-O1", "-o", str(program), str(source)], check=True)
    stashtrace = [sys.executable, "-m", "stashtrace", "run", "--no-merge", "--out", str(run), "--", str(program)]
    subprocess.run(stashtrace, check=True, capture_output=True, timeout=120)
    trace = load_trace(run)
    assert trace.io_rows_count >= 20_000
    # A read of 16 bytes takes some hundred ns, of which 40 ns are ours; the parent alone used next to nothing.
    assert 0 < own_cost(run).least_ratio < 0.5
