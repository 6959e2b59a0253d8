"""``stashtrace model``: a run, a study, predictions, pictures, and complaints with their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import stashtrace
from lab.test_layer_study import resnets, study
from replay.test_communication_model import ALPHA, APART, SIZES, job

from stashtrace.cli import main
from stashtrace.cli.synth import main as write_synthetic

pytest.importorskip("pyarrow", reason="the run of these tests is a store of Parquet files")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks whose messages take 200 us and 2 ns a byte."""
    from stashtrace.exporters.store import export_store

    out = tmp_path_factory.mktemp("model") / "run.store"
    export_store(job(APART).trace(), out)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of five networks."""
    out = tmp_path_factory.mktemp("study")
    (out / "study.json").write_text(json.dumps(study(resnets(10, 12, 16, 18, 34), noise=2e5)))
    return out


def asked(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["model", *map(str, words), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, run)
    assert found["fits"][0]["alpha_ns"] == pytest.approx(ALPHA, rel=1e-6)
    assert [row["message_bytes"] for row in found["fits"][0]["sizes"]] == list(SIZES)
    assert main(["model", str(run)]) == 0
    assert "exposed communication of a backward pass, 4 messages" in capsys.readouterr().out


def test_a_study_and_predictions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, folder, "--predict", "resnet50", "--predict", "400:90M")
    assert [v["name"] for v in found["variants"]][-1] == "resnet34"
    assert [p["messages_count"] for p in found["predictions"]] == [161, 400]
    assert found["predictions"][1]["message_bytes"] == 90_000_000
    assert found["predictions"][0]["error_ns"] > 0
    assert main(["model", str(folder), "--predict", "resnet50"]) == 0
    text = capsys.readouterr().out
    assert "fits of the stall, with standard errors" in text
    assert "resnet50: 161 messages" in text


def test_pictures(run: Path, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for path in (run, folder):
        plot = tmp_path / f"{path.name}.png"
        assert main(["model", str(path), "--plot", str(plot)]) == 0
        assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_guide_shows_what_its_study_prints(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).resolve().parents[2]
    capsys.readouterr()
    assert main(["model", str(root / "tests/data/layers-study"), "--predict", "resnet101"]) == 0
    guide = (root / "docs/guides/model.md").read_text(encoding="utf-8")
    assert f"--plot study.png\n{capsys.readouterr().out}```" in guide


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "neither is given"),
        (("{run}", "--sweep", "depth"), 2, "both are given"),
        (("{run}", "--ranks", "3"), 2, "--ranks is for sweeps"),
        (("{run}", "--no-batch-norm"), 2, "--no-batch-norm is for sweeps"),
        (("{run}", "--predict", "vgg11"), 2, "--predict needs a sweep"),
        (("{run}", "--plot", "x.txt"), 2, "a plot ends in"),
        (("{run}", "--plot", "nowhere/x.png"), 3, "no such folder"),
        (("{folder}", "--predict", "alexnet"), 2, "no network is called"),
        (("{folder}", "--predict", "x:9M"), 2, "is not a number of messages"),
        (("{folder}", "--predict", "9:many"), 2, "is not a size"),
        (("nothing-here",), 4, "does not exist"),
        (("--sweep", "depth", "--family", "vgg", "--no-residual"), 2, "no residual links"),
        (("--sweep", "depth", "--depths", "7"), 2, "there is no resnet7"),
        (("--sweep", "depth", "--depths", "seven"), 2, "is not a list of positive whole numbers"),
        (("--sweep", "depth", "--predict", "alexnet"), 2, "no network is called"),
        (("--sweep", "bucket", "--ranks", "1"), 2, "--ranks 1"),
    ],
)
def test_complaints(
    words: tuple[str, ...],
    code: int,
    said: str,
    run: Path,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["model", *(word.format(run=run, folder=folder) for word in words)]) == code
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.startswith("error: ")
    assert said in reported.err.splitlines()[0]
    assert "hint: " in reported.err
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_collectives_and_one_of_two_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stashtrace.exporters.store import export_store

    export_store(job(APART[:2], sizes=SIZES[:2]).trace(), tmp_path / "two.store")
    assert write_synthetic([str(tmp_path / "one"), "--ranks", "1", "--steps", "8"]) == 0
    for name, said in (("two.store", "2 message sizes of all_reduce"), ("one", "no collective")):
        capsys.readouterr()
        assert main(["model", str(tmp_path / name)]) == 4
        assert said in capsys.readouterr().err


def test_torch_is_not_there(tmp_path: Path) -> None:
    """A torch that cannot be imported, found out by the process that would need it."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    (tmp_path / "cupy.py").write_text("raise ImportError('no cupy here')\n")
    answer = stashtrace("model", "--sweep", "depth", "--out", tmp_path / "s", PYTHONPATH=f"{tmp_path}:{Path.cwd()}")
    assert answer.code == 3
    assert "torch cannot be imported here" in answer.err
    assert "pip install" in answer.err
    assert not (tmp_path / "s").exists()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.torch
def test_a_tiny_sweep_from_end_to_end(tmp_path: Path) -> None:
    """Three networks really trained on one rank and on two, then shown again without training."""
    pytest.importorskip("torch")
    words = (
        *("model", "--sweep", "depth", "--family", "transformer", "--depths", "1,2,3", "--repeat", "1"),
        *("--iterations", "12", "--batch-size", "2", "--out", tmp_path / "s", "--format", "json"),
    )
    first = stashtrace(*words, timeout=300)
    assert first.code == 0, first.err
    found = json.loads(first.out)
    assert [v["name"] for v in found["variants"]] == ["transformer1", "transformer2", "transformer3"]
    # Each tensor is a message: what was seen is what the shapes say.
    assert [v["messages_count"] for v in found["variants"]] == [18, 30, 42]
    assert [v["tensors_count"] for v in found["variants"]] == [18, 30, 42]
    for variant in found["variants"]:
        # Medians of different sets of a few noisy steps, so neither must be the larger; made-up traces show what each
        # is to the nanosecond. A wrong unit would be off by a thousand.
        step_ns = variant["tn_ns"]["value"]
        assert 0 < variant["exposed_ns"] < 10 * step_ns
        assert 0 < variant["predicted_exposed_ns"] < 10 * step_ns
    assert found["fits"]
    again = stashtrace(*words, "--predict", "transformer6", timeout=180)
    assert again.code == 0, again.err
    second = json.loads(again.out)
    assert second["variants"] == found["variants"]
    assert second["predictions"][0]["messages_count"] == 78
    runs = sorted(path.name for path in (tmp_path / "s/runs").iterdir())
    assert runs[:2] == ["transformer1-x1-0", "transformer1-x2-0"]
    # Each run is an ordinary one, for every other command.
    traced = stashtrace("model", tmp_path / "s/runs/transformer3-x2-0/run", "--format", "json")
    assert traced.code == 0, traced.err
    assert json.loads(traced.out)["exposed"]["messages_count"] == 42


def test_a_characterization_that_knows_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As recommend takes it: numbers of elsewhere."""
    (tmp_path / "characterization.json").write_text('{"format": 1, "steps": {}}', encoding="utf-8")
    assert main(["model", str(tmp_path)]) == 4
    assert "not a usable characterization: 'plan' is missing" in capsys.readouterr().err


def test_the_run_of_a_characterization(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of three runs of all ranks the middle one, with the difference of the steps above it."""
    from stashtrace.exporters.store import export_store
    from stashtrace.lab.characterize.answer import Characterization, ConfigurationRun
    from stashtrace.lab.characterize.run_figures import Figures

    found = Characterization({}, {})
    for repeat, step_ns in enumerate((31e6, 29e6, 30e6)):
        for step, time in ((1, 20e6), (2, step_ns)):
            figures = Figures(time, 20, 0, step, 1, 0)
            found.runs.append(ConfigurationRun(step, repeat, "measured", f"runs/step{step}-{repeat}", figures=figures))
    found.save(tmp_path)
    assert main(["model", str(tmp_path)]) == 4
    assert "its runs of configuration 2 are gone" in capsys.readouterr().err
    for repeat in range(3):
        export_store(job(APART).trace(), tmp_path / f"runs/step2-{repeat}")
    whole = asked(capsys, tmp_path)
    assert whole["run"] == "runs/step2-2"
    assert whole["interconnect_lost"]["value_ns"] == pytest.approx(10e6)
    assert whole["fits"][0]["alpha_ns"] == pytest.approx(ALPHA, rel=1e-6)
    assert main(["model", str(tmp_path)]) == 0
    assert "the steps of configurations 1 and 2 differ by 10.0 ms" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "characterization.json").write_text("{")
    assert main(["model", str(tmp_path)]) == 4


def test_what_was_measured_is_shown_before_the_complaint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One network carries no fit; minutes of measuring are not thrown away for that."""
    (tmp_path / "study.json").write_text(json.dumps(study(resnets(10))), encoding="utf-8")
    capsys.readouterr()
    assert main(["model", str(tmp_path), "--predict", "resnet50"]) == 4
    reported = capsys.readouterr()
    assert "interconnect stall, step of 2 ranks minus step of one" in reported.out
    assert "predicted:" not in reported.out
    assert reported.err.startswith("error: the study carries no fit to predict with")
    assert main(["model", str(tmp_path), "--predict", "resnet50", "--format", "json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["predictions"] == []
    assert [one["name"] for one in found["variants"]] == ["resnet10"]


def test_a_damaged_study_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = study(resnets(10, 12, 18))
    del content["settings"]["backend"]
    (tmp_path / "study.json").write_text(json.dumps(content), encoding="utf-8")
    capsys.readouterr()
    assert main(["model", str(tmp_path)]) == 4
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.startswith("error: this is not a study: its settings lack backend")
