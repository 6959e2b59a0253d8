"""``stashtrace whatif --apply``: a real job of two ranks, run again with buckets that its script does not ask for."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from builders import MS, TraceBuilder
from command_line import stashtrace
from installed import needs_torch
from ports import free_port
from replay.ddp_runs import ALPHA_NS, MIB, ddp_run, step_ns

from stashtrace.cli import main
from stashtrace.cli.commands.whatif import measured_with_buckets
from stashtrace.errors import CaptureError
from stashtrace.loading import load
from stashtrace.loading.load import load_trace
from stashtrace.replay.communication.ddp import BUCKET, ddp_facts
from stashtrace.replay.communication.messages import gradient_messages
from stashtrace.replay.communication.overlap import bucket_ends

needs_torch()

#: Six layers of 257 KiB; with an argument the script chooses its buckets itself. It starts its own ranks.
JOB = """
import os, subprocess, sys
if "RANK" not in os.environ:
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": str(r)}) for r in (0, 1)]
    sys.exit(max(rank.wait() for rank in ranks))
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=2)
layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
own = {"bucket_cap_mb": float(sys.argv[1])} if len(sys.argv) > 1 else {}
model = DistributedDataParallel(layers, **own)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(16):
    optimizer.zero_grad()
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
print("trained")
dist.destroy_process_group()
"""
GRADIENTS = [size for _ in range(6) for size in (4 * 256, 4 * 256 * 256)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Folder with the script and one recorded run of it, with a size of buckets that is none, and variables of both."""
    folder = tmp_path_factory.mktemp("apply")
    (folder / "job.py").write_text(JOB, encoding="utf-8")
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    words = ["run", "--overwrite", "--out", str(folder / "run"), "--", sys.executable, str(folder / "job.py")]
    for _ in range(4):  # on a busy machine too much of such short steps may have no known cause
        done = stashtrace(*words, **settings, STASHTRACE_BUCKET_MB="x")
        assert done.code == 0, done.err
        if stashtrace("whatif", str(folder / "run"), "--set", "bucket_mb=0.5").code == 0:
            break
    return folder, settings


def messages_of_a_step(run: Path) -> list[int]:
    """Bytes of the buckets of one backward pass, in order."""
    messages = gradient_messages(load_trace(run))
    last = messages.step == messages.step.max()
    return messages.bytes[last & messages.within].tolist()


def test_a_run_says_what_its_buckets_are_and_a_size_that_is_none_changes_nothing(
    job: tuple[Path, dict[str, str]],
) -> None:
    trace = load_trace(job[0] / "run")
    assert "bucket_not_applied" in {trace.text(int(code)) for code in trace.losses["name_code"]}
    facts = ddp_facts(trace)
    assert (facts.bucket_mib, facts.sources) == (25.0, ("default",))
    assert sorted(facts.gradients_bytes.tolist()) == sorted(GRADIENTS)
    # Torch's first bucket is one of 1 MiB.
    assert messages_of_a_step(job[0] / "run") == [4 * sum(GRADIENTS[:2]), 2 * sum(GRADIENTS[:2])]


def test_other_buckets_are_applied_and_measured(job: tuple[Path, dict[str, str]]) -> None:
    folder, settings = job
    options = ["whatif", str(folder / "run"), "--set", "bucket_mb=0.5", "--apply", "--format", "json"]
    done = stashtrace(*options, "--", sys.executable, str(folder / "job.py"), **settings)
    assert done.code == 0, done.err
    found = json.loads(done.out)  # what the job prints is on stderr
    assert done.err.count("trained") == 2
    second = folder / "run-bucket-0.5"
    assert messages_of_a_step(second) == [2 * sum(GRADIENTS[:2])] * 3
    gradients = ddp_facts(load_trace(folder / "run")).gradients_bytes
    predicted, anywhere = bucket_ends(messages_of_a_step(folder / "run"), MIB / 2, gradients_bytes=gradients)
    assert not anywhere
    assert predicted.tolist() == np.cumsum(messages_of_a_step(second)).tolist()
    assert ddp_facts(load_trace(second)).sources == ("applied",)
    (answer,) = found["answers"]
    assert answer["changes"] == ["bucket_mb=0.5"]
    applied = found["applied"]
    assert 0.1e6 < applied["measured_ns"] < 10e9
    nearest = min(max(applied["measured_ns"], answer["low_ns"]), answer["high_ns"])
    assert applied["error_ratio"] == pytest.approx(nearest / applied["measured_ns"] - 1)


@pytest.mark.thorough
def test_what_the_script_chose_stays_and_is_said(job: tuple[Path, dict[str, str]]) -> None:
    folder, settings = job
    options = ["whatif", str(folder / "run"), "--set", "bucket_mb=4", "--apply", "-o", str(folder / "own")]
    done = stashtrace(*options, "--", sys.executable, str(folder / "job.py"), "0.5", **settings)
    assert done.code == 3
    assert "the script gives bucket_cap_mb itself" in done.err
    assert messages_of_a_step(folder / "own") == [2 * sum(GRADIENTS[:2])] * 3


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (("25 script",), "gives bucket_cap_mb itself, so that nothing was applied"),
        (("25 script", "4 applied"), "gives bucket_cap_mb to one of its models, which kept that"),
        (("25 default",), "did not take bucket_cap_mb=4 and kept torch's default"),
        ((), "made no DistributedDataParallel"),
    ],
)
def test_why_nothing_was_measured(
    told: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the wrappers of the second run say of themselves."""
    build = TraceBuilder()
    for number, value in enumerate(told):
        codes = {"key_code": build.strings.code(f"{BUCKET} {number}"), "value_code": build.strings.code(value)}
        build.add("metadata", process_id=build.rank(0).process_id, **codes)
    build.rank(0)
    (tmp_path / "a.stash").write_bytes(b"")
    monkeypatch.setattr("stashtrace.cli.commands.run.main", lambda words: 0)
    monkeypatch.setattr(load, "load_trace", lambda path, **_: build.trace())
    with pytest.raises(CaptureError, match=re.escape(text)):
        measured_with_buckets(["true"], 4.0, str(tmp_path))


def test_a_command_that_fails_or_is_another_is_said(job: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, settings = job
    for code, exit_code, text in ((5, 3, "ended with exit code 5"), (0, 3, "made no DistributedDataParallel")):
        options = ["whatif", str(folder / "run"), "--set", "bucket_mb=4", "--apply", "-o", str(tmp_path / str(code))]
        done = stashtrace(*options, "--", sys.executable, "-c", f"raise SystemExit({code})", **settings)
        assert (done.code, text in done.err) == (exit_code, True), done.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--apply",), "needs the command"),
        (("--", "true"), "need --apply"),
        (("-o", "there"), "need --apply"),
        (("--apply", "--set", "compute=x0.5", "--", "true"), "compute=x0.5 cannot be applied"),
        (("other", "--apply", "--", "true"), "takes one run"),
        (("--apply", "--set", "bucket_mb=0", "--", "true"), "bucket_mb cannot be 0"),
    ],
)
def test_requests_that_make_no_sense(words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "no-such-run", *words]) == 2
    assert text in capsys.readouterr().err
    assert not os.path.exists("there")


def test_without_a_size_the_best_one_by_the_replay_is_applied(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A made-up run: start-ups of 3 ms make few messages best; with start-ups of 0.4 ms its own are."""
    pytest.importorskip("pyarrow", reason="these runs are stores of Parquet files")
    from stashtrace.exporters.store import export_store

    said = {}
    for latency, exit_code in ((3 * MS, 3), (ALPHA_NS, 4)):
        run = tmp_path / f"{latency}.store"
        export_store(ddp_run(1, latency_ns=latency).trace(), run)
        assert main(["whatif", str(run), "--apply", "-o", str(tmp_path / "out"), "--", "true"]) == exit_code
        said[latency] = capfd.readouterr().err
    assert "no other size of buckets is predicted to be better" in said[ALPHA_NS]
    assert "the command made no DistributedDataParallel" in said[3 * MS]
    applied = re.search(r"with bucket_cap_mb=([\d.]+),", said[3 * MS])
    assert applied is not None
    every = [step_ns(eighths / 8 * MIB, latency_ns=3 * MS) for eighths in range(1, 80)]
    assert step_ns(float(applied.group(1)) * MIB, latency_ns=3 * MS) == min(every) < every[0]
