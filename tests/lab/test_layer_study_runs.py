"""The layers study as a plan: order, what is not repeated, what fails, and what the machine must have."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import MS
from replay.test_communication_model import APART, SIZES, STEP_NS, cost, job

from stashtrace.errors import CaptureError, FormatError, StashtraceError, UnsupportedVersionError, UsageError
from stashtrace.lab.processes import cores_of_ranks
from stashtrace.lab.sweep import study_worker as layer_ranks
from stashtrace.lab.sweep.fit_study import study_of
from stashtrace.lab.sweep.layers_study import StudyRequest, read_study, run_facts, run_study, settings_of, variants_of
from stashtrace.lab.sweep.shapes import network

GLOO = {"library": "torch", "backends": ["gloo"], "devices": [], "torch": "2.99"}
GPUS = {"library": "torch", "backends": ["gloo", "nccl"], "devices": ["A"] * 4, "torch": "2.99"}
SMALL = StudyRequest("depth", "resnet", depths=(10, 12, 18), repeat=2)


class Bench:
    """Makes runs up, and remembers which."""

    def __init__(self, broken: str = "") -> None:
        self.made: list[str] = []
        self.broken = broken

    def __call__(self, folder: Path, task: Mapping[str, Any]) -> dict[str, Any]:
        self.made.append(folder.name)
        if self.broken and self.broken in folder.name:
            raise CaptureError("exit code 1, rank 0: out of memory")
        net = network(**task["network"])
        if task["ranks"] == 1:
            return {"step_ns": 20e6, "steps_count": 20}
        bucket = task["bucket_bytes"]
        count = net.tensors_count if bucket == 1 else max(net.gradient_bytes // bucket, 1)
        stall = count * 3e5 + net.gradient_bytes * 4
        return {"step_ns": 20e6 + stall, "messages_count": count, "message_bytes": net.gradient_bytes}


def run(out: Path, bench: Bench, request: StudyRequest = SMALL, **options: Any) -> dict[str, Any]:
    return run_study(request, out, facts=GLOO, runner=bench, **options)


def test_one_rank_and_all_alternate_within_each_repetition(tmp_path: Path) -> None:
    bench, reported = Bench(), []
    content = run(tmp_path / "s", bench, on_progress=lambda share, what: reported.append((share, what)))
    once = ["resnet10-x1", "resnet10-x2", "resnet12-x1", "resnet12-x2", "resnet18-x1", "resnet18-x2"]
    assert bench.made == [f"{name}-{repeat}" for repeat in (0, 1) for name in once]
    assert content == read_study(tmp_path / "s")
    assert content["settings"]["ranks"] == 2
    assert [share for share, _ in reported] == sorted(share for share, _ in reported)
    assert reported[0] == (0.0, "resnet10 x1, 1 of 2")
    assert "left" in reported[-1][1]
    best = study_of(content).best
    assert best.coefficients == pytest.approx([3e5, 4.0])


def test_figures_of_a_run_are_those_that_its_trace_was_drawn_with() -> None:
    """Messages that have the link for themselves: what the last one takes is exposed, without the wait for rank 1."""
    trace = job(APART, late=2 * MS).trace()
    found = run_facts(trace, 2)
    assert (found["messages_count"], found["message_bytes"]) == (len(SIZES), sum(SIZES))
    assert found["step_ns"] == pytest.approx(STEP_NS, rel=1e-6)
    assert found["link_ns"] == pytest.approx(sum(map(cost, SIZES)), rel=1e-6)
    for name in ("exposed_ns", "predicted_ns"):
        assert found[name] == pytest.approx(cost(SIZES[-1]), rel=1e-6), name
    assert run_facts(trace, 1) == {"step_ns": found["step_ns"], "steps_count": found["steps_count"]}


def test_finished_runs_are_not_repeated(tmp_path: Path) -> None:
    run(tmp_path / "s", Bench())
    bench = Bench()
    run(tmp_path / "s", bench)
    assert bench.made == []
    run(tmp_path / "s", bench, StudyRequest("depth", "resnet", depths=(10,), repeat=3))
    assert bench.made == ["resnet10-x1-2", "resnet10-x2-2"]


def test_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    class Interrupted(Bench):
        def __call__(self, folder: Path, task: Mapping[str, Any]) -> dict[str, Any]:
            if len(self.made) == 3:
                raise KeyboardInterrupt
            return super().__call__(folder, task)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "s", Interrupted())
    bench = Bench()
    run(tmp_path / "s", bench)
    assert len(bench.made) == 12 - 3
    assert bench.made[0] == "resnet12-x2-0"


def test_other_sweeps_join_the_same_folder(tmp_path: Path) -> None:
    run(tmp_path / "s", Bench())
    bench = Bench()
    content = run(tmp_path / "s", bench, StudyRequest("bucket", "resnet", repeat=2))
    # One rank of resnet18, and its message per tensor, are there already.
    assert all(name.startswith("resnet18-") and "-x2-" in name for name in bench.made)
    assert len(bench.made) == 2 * 6
    assert len(content["variants"]) == 3 + 6
    run(tmp_path / "s", bench, StudyRequest("depth", "resnet", depths=(10, 18), repeat=1, batch_norm=False))
    assert {v["name"] for v in read_study(tmp_path / "s")["variants"]} > {"resnet10-nobn", "resnet18-nobn"}


def test_a_run_that_fails_leaves_the_others_and_is_tried_again(tmp_path: Path) -> None:
    content = run(tmp_path / "s", Bench(broken="resnet12-x2"))
    failed = [r for r in content["runs"] if r["failed"]]
    assert [(r["name"], r["ranks"]) for r in failed] == [("resnet12", 2)] * 2
    assert any("out of memory" in note for note in study_of(content).notes)
    bench = Bench()
    content = run(tmp_path / "s", bench)
    assert bench.made == ["resnet12-x2-0", "resnet12-x2-1"]
    assert not any(r["failed"] for r in content["runs"])


def test_nothing_works(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no run of the study worked: resnet10 x1: exit code 1"):
        run(tmp_path / "s", Bench(broken="resnet"))


def test_another_study_is_not_mixed_with(tmp_path: Path) -> None:
    run(tmp_path / "s", Bench())
    with pytest.raises(UsageError, match="holds a study with batch_samples 8"):
        run(tmp_path / "s", Bench(), StudyRequest("depth", "resnet", batch_samples=4))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a study"):
        run(tmp_path / "other", Bench())
    (tmp_path / "s" / "study.json").write_text("{")
    with pytest.raises(FormatError, match="not a usable study: no JSON object"):
        run(tmp_path / "s", Bench())
    (tmp_path / "s" / "study.json").write_text("[]")
    with pytest.raises(FormatError, match="not an object"):
        read_study(tmp_path / "s")
    (tmp_path / "s" / "study.json").write_text('{"format": 7}')
    with pytest.raises(UnsupportedVersionError, match="study format 7"):
        read_study(tmp_path / "s")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (StudyRequest("depth", ranks=1), "--ranks 1"),
        (StudyRequest("depth", iterations=3), "--iterations 3"),
        (StudyRequest("depth", repeat=0), "--repeat 0"),
        (StudyRequest("depth", batch_samples=0), "--batch-size 0"),
        (StudyRequest("depth", bucket_mib=-1), "--bucket-mb -1"),
        (StudyRequest("colour"), "no sweep"),
        (StudyRequest("depth", "alexnet"), "no family"),
        (StudyRequest("width", "vgg", residual=False), "no residual"),
    ],
)
def test_requests_that_make_no_sense(request_: StudyRequest, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        run_study(request_, tmp_path / "s", facts=GLOO, runner=Bench())
    assert said in str(caught.value)
    assert caught.value.hint
    assert not (tmp_path / "s").exists()


def test_sweeps_differ_in_what_they_are_called_for() -> None:
    widths = [v.network for v in variants_of(StudyRequest("width"))]
    assert {net.depth for net in widths} == {18}
    assert len({net.tensors_count for net in widths}) == 1
    assert [net.width for net in widths] == [8, 12, 16, 24, 32]
    buckets = variants_of(StudyRequest("bucket", "transformer", depths=(2,)))
    assert len({v.network for v in buckets}) == 1
    assert len({v.bucket_bytes for v in buckets}) == len(buckets) == 7
    (merged, *_) = variants_of(StudyRequest("depth", depths=(10,), bucket_mib=25))
    assert merged.name == "resnet10-b25600K"
    assert all(v.network.width % 32 == 0 for v in variants_of(StudyRequest("width", "transformer")))


@pytest.mark.parametrize(
    ("facts", "ranks", "settings"),
    [
        (GLOO, None, (2, "cpu", "gloo")),
        (GLOO, 4, (4, "cpu", "gloo")),
        (GPUS, None, (4, "cuda", "nccl")),
        (GPUS, 2, (2, "cuda", "nccl")),
        (GPUS, 8, (8, "cpu", "gloo")),
        ({**GPUS, "devices": ["A"]}, None, (2, "cpu", "gloo")),
    ],
)
def test_where_the_ranks_run(facts: dict[str, Any], ranks: int | None, settings: tuple[int, str, str]) -> None:
    found = settings_of(StudyRequest("depth", ranks=ranks), facts)
    assert (found["ranks"], found["device"], found["backend"]) == settings


@pytest.mark.parametrize(
    "facts",
    [
        {"library": "", "backends": []},
        {"library": "cupy", "backends": ["nccl"]},
        {"library": "torch", "torch": "2.9", "backends": []},
    ],
)
def test_torch_is_missing(facts: dict[str, Any]) -> None:
    with pytest.raises(StashtraceError) as caught:
        settings_of(StudyRequest("depth"), facts)
    assert caught.value.exit_code == 3
    assert "pip install" in str(caught.value.hint)


def test_cores_are_shared_out_equally() -> None:
    assert cores_of_ranks([0, 1], 2) == [[0], [1]]
    assert cores_of_ranks([3, 5, 7], 2) == [[3], [5]]
    assert cores_of_ranks([0], 2) == [[], []]


def test_ranks_keep_the_tracer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are traced by what the command of the study was started with."""
    (tmp_path / "stub.py").write_text(
        "import json, os\nnames = ('LD_PRELOAD_X', 'STASHTRACE_X', 'PYTHONPATH', 'RANK', 'LOCAL_WORLD_SIZE')\n"
        "print(json.dumps([os.environ[name] for name in names]))\n"
    )
    monkeypatch.setattr(layer_ranks, "_WORKER", "stub")
    for name, value in {"LD_PRELOAD_X": "x", "STASHTRACE_X": "d", "PYTHONPATH": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    task = tmp_path / "task.json"
    task.write_text(json.dumps({"ranks": 2}))
    assert layer_ranks.start(task) == 0
    said = [json.loads(log.read_text()) for log in layer_ranks.rank_logs(task, 2)]
    assert said == [["x", "d", str(tmp_path), str(rank), "2"] for rank in range(2)]


def test_a_rank_that_fails_takes_the_others_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 would sleep for a minute; rank 1 fails at once."""
    (tmp_path / "stub.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '0': time.sleep(60)\nsys.exit('cannot build the network')\n"
    )
    monkeypatch.setattr(layer_ranks, "_WORKER", "stub")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    task = tmp_path / "task.json"
    task.write_text(json.dumps({"ranks": 2}))
    assert layer_ranks.start(task) == 1
    assert layer_ranks.last_words(task, 2) == "rank 1: cannot build the network"
    assert "stub" not in sys.modules


@pytest.mark.parametrize(
    "damage",
    [
        {"settings": None},
        {"variants": 7},
        {"variants": [{}]},
        {"runs": None},
        {"runs": [{"name": "resnet10", "ranks": None, "repeat": 0}]},
    ],
)
def test_a_study_that_is_not_whole_is_not_added_to(tmp_path: Path, damage: dict[str, Any]) -> None:
    """Said in a line, by a sweep into its folder as by showing it; nothing is written over."""
    content = run(tmp_path, Bench()) | damage
    (tmp_path / "study.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(FormatError, match="not a usable study: its settings, variants or runs") as caught:
        run(tmp_path, Bench())
    assert "remove it" in str(caught.value.hint)
    assert json.loads((tmp_path / "study.json").read_text(encoding="utf-8")) == content


@pytest.mark.parametrize("size", [-1.0, float("nan"), float("inf")])
def test_a_bucket_of_no_size(size: float) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        variants_of(StudyRequest("depth", bucket_mib=size))
