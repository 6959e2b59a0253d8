"""A job whose Python is not the tracer's: another version or environment, no numpy, another stashtrace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from other_pythons import RECORDS, VERSIONS, interpreter, run_script
from traced import ROOT, TracedRun, run_traced

from stashtrace import _native
from stashtrace.format.reader import open_run
from stashtrace.schema.kinds import Severity


def recorded(folder: Path) -> tuple[Counter[str], dict[str, tuple[str, ...]], list[str], dict[str, str]]:
    """Rows and fields by record, the texts of phases and spans, and reason -> detail of losses."""
    rows: Counter[str] = Counter()
    fields, texts, losses = {}, [], {}
    for process in (p.load() for p in open_run(folder).processes):
        for name, record in process.records.items():
            rows[name] += len(record.rows)
            fields[name] = record.rows.dtype.names
        for name in {"phase_span", "span"} & set(process.records):
            texts += [process.strings[int(code)] for code in process.records[name].rows["name_id"]]
        for row in process.records["loss"].rows if "loss" in process.records else ():
            assert row["severity_code"] == Severity.ERROR
            losses[process.strings[int(row["reason_id"])]] = process.strings[int(row["detail_id"])]
    return rows, fields, sorted(texts), losses


PROBED = """
    import json, sys, threading
    import stashtrace
    from stashtrace.probes import native, process, recorder
    from stashtrace.probes.recorder import CLOCKS, USAGE, batch_ends, code, phase_ends, probe_begins

    process.begin()
    out = {"active": native.active(), "collectors": native.config()["collectors"], "seen": []}
    out["schema"] = native.schema()

    def begins():
        return probe_begins(CLOCKS)

    def ends(first, begin, failed):
        out["seen"].append([first.name, failed, native.in_outermost_call()])
        phase_ends(begin, first.name, code("Phase", "forward"), 0)

    class Module:
        name = "module"
        def __call__(self, *args, depth=0, error=None):
            if error is not None:
                raise error
            return self(depth=depth - 1) if depth else (args, native.in_outermost_call())

    same = Module.__call__
    out["watched"] = native.watch_outermost_calls(Module.__call__, begins, ends)
    out["again"] = native.watch_outermost_calls(Module.__call__, begins, ends)
    out["others"] = [native.watch_outermost_calls(f, begins, ends) for f in (begins, len, Module)]
    out["same"] = same is Module.__call__
    out["results"] = [Module()(1, 2), Module()(depth=3), Module()(depth=0)]
    for _ in range(50):
        Module()()  # often enough for an interpreter that specializes its calls
    try:
        Module()(error=KeyError("of the user"))
    except KeyError as error:
        out["error"] = str(error)
    thread = threading.Thread(target=Module())
    thread.start()
    thread.join()
    batch_ends(probe_begins(USAGE), code("BatchPhase", "fetch"), 7, 0, -1)
    refused = [
        (native.emit, (0x10, b"short")), (native.emit, (0x10,)), (native.intern, (b"bytes",)), (probe_begins, (-1,)),
        (phase_ends, (b"other", "a", 0, 0)), (native.tcp_ends, (1 << 40,)), (native.now_ticks, (1,)),
        (phase_ends, (probe_begins(0), "a", 1 << 16, 0)), (native.kernels_step, ("no number",)),
    ]
    out["refused"] = []
    for function, given in refused:
        try:
            out["refused"].append(repr(function(*given)))
        except (TypeError, ValueError, OverflowError) as error:
            out["refused"].append(type(error).__name__)
    with stashtrace.annotate("text \\udcff"):
        pass
    for _ in range(3):
        stashtrace.step()
    native.report_loss(0, "a_reason", 0, "a sentence", 1)
    stashtrace.flush()
    out["numpy"] = "numpy" in sys.modules
    out["calls"] = native.probe_account()[1]
    print(json.dumps(out))
"""
#: Rows whose number is not the script's.
OWN_PACE = {"clock_sync", "thread_info", "string_part", "metadata", "proc_sample", "thread_wait", "thread_cpu"}
PROBES_ONLY = {"STASHTRACE_COLLECTORS": "annotations,torch_step,torch_dataloader"}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What the script says and leaves in the Python of the tests."""
    folder = tmp_path_factory.mktemp("own") / "run"
    stdout, _ = run_script(sys.executable, PROBED, folder, **PROBES_ONLY)
    return json.loads(stdout), folder


def test_what_the_probes_can_call(own: tuple[dict[str, Any], Path]) -> None:
    out, folder = own
    assert out["schema"] == _native.schema()
    assert (out["active"], out["collectors"]) == (True, ["core", "annotations", "torch_dataloader", "torch_step"])
    assert (out["watched"], out["again"], out["others"], out["same"]) == (True, True, [False] * 3, True)
    assert out["results"] == [[[1, 2], True], [[], True], [[], True]]
    assert out["seen"] == [["module", False, False]] * 53 + [["module", True, False], ["module", False, False]]
    assert out["error"] == "'of the user'"
    kinds = ["ValueError", "TypeError", "TypeError", "OverflowError", "ValueError", "ValueError", "TypeError"]
    assert out["refused"] == [*kinds, "ValueError", "TypeError"]
    assert out["calls"] == 56
    rows, _, texts, losses = recorded(folder)
    assert (rows["phase_span"], rows["batch"], rows["span"], rows["instant"]) == (55, 1, 1, 3)
    assert texts == ["module"] * 55 + ["text \ufffd"]  # a byte that is no text
    assert losses == {"a_reason": "a sentence"}


@pytest.mark.parametrize("minor", [minor for minor in VERSIONS if minor >= RECORDS])
def test_another_python_records_the_same(own: tuple[dict[str, Any], Path], tmp_path: Path, minor: int) -> None:
    stdout, stderr = run_script(interpreter(minor), PROBED, tmp_path / "run", **PROBES_ONLY)
    assert (json.loads(stdout), stderr) == (own[0], "")
    mine, theirs = recorded(own[1]), recorded(tmp_path / "run")
    assert {k: v for k, v in theirs[0].items() if k not in OWN_PACE} == {
        k: v for k, v in mine[0].items() if k not in OWN_PACE
    }
    assert {k: v for k, v in theirs[1].items() if k in mine[1]} == {k: v for k, v in mine[1].items() if k in theirs[1]}
    assert theirs[2:] == mine[2:]


@pytest.fixture
def played_torch(tmp_path: Path) -> Path:
    (tmp_path / "own/torch").mkdir(parents=True)
    (tmp_path / "own/torch/__init__.py").write_text("READ = open(__file__).read()\n")
    return tmp_path / "own"


@pytest.mark.parametrize("minor", [minor for minor in VERSIONS if minor < RECORDS])
def test_an_older_python_says_so_in_the_summary(tmp_path: Path, played_torch: Path, minor: int) -> None:
    command = [sys.executable, "-m", "stashtrace", "run", "--out", tmp_path / "run", "--", interpreter(minor)]
    code = "import torch, sys\nimport torch\nprint(torch.READ[:4], 'stashtrace.probes.bootstrap' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(played_torch)])}
    done = subprocess.run(
        [*command, "-B", "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "READ False\n"), done.stderr
    sentence = f"the probes need Python 3.10 or newer, this job runs Python 3.{minor}: only native collectors record it"
    assert sentence in " ".join(done.stderr.split())
    rows, _, _, losses = recorded(tmp_path / "run")
    assert losses == {"probes_not_loaded": sentence}
    assert rows["io_op"] > 0


@pytest.mark.parametrize("minor", [minor for minor in VERSIONS if minor < RECORDS])
def test_an_older_python_without_torch_says_nothing(tmp_path: Path, minor: int) -> None:
    out = run_script(interpreter(minor), "import json; print(1)", tmp_path / "run")
    assert out == ("1\n", "")
    assert recorded(tmp_path / "run")[3] == {}


def test_a_recorder_of_another_version_leaves_the_probes_off(tmp_path: Path, played_torch: Path) -> None:
    """As where a file of that name without our functions has been preloaded: one line, and the job goes on."""
    package = tmp_path / "copy/stashtrace"
    shutil.copytree(ROOT / "stashtrace/probes", package / "probes")
    environment = {"STASHTRACE_DIR": str(tmp_path), "PYTHONPATH": f"{package / 'probes/inject'}:{played_torch}"}
    command = [sys.executable, "-c", "import torch; print(1)"]
    base = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH")}
    done = subprocess.run(command, env=base | environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "the recorder has no functions for this Python" in done.stderr


OTHER_VERSION = """
    import importlib
    __version__ = "9.9"
    def __getattr__(name):
        if name not in ("annotate", "step", "flush"):
            raise AttributeError(name)
        return getattr(importlib.import_module("stashtrace.probes.annotations"), name)
    mine = "of the job"
"""


def test_a_stashtrace_of_another_version_marks_steps_for_the_tracer(tmp_path: Path) -> None:
    """The rest of the job's package stays what it imports; no module of its probes is loaded."""
    theirs = tmp_path / "theirs/stashtrace"
    (theirs / "probes").mkdir(parents=True)
    (theirs / "__init__.py").write_text(textwrap.dedent(OTHER_VERSION))
    for name in ("__init__", "annotations", "recorder"):
        (theirs / "probes" / f"{name}.py").write_text("raise RuntimeError('probes of the job')\n")
    code = """
        import stashtrace, sys
        with stashtrace.annotate("mine"):
            stashtrace.step()
        stashtrace.flush()
        from stashtrace import probes
        print(stashtrace.__version__, stashtrace.mine, probes.__file__)
    """
    stdout, stderr = run_script(sys.executable, code, tmp_path / "run", theirs.parent)
    assert (stdout, stderr) == (f"9.9 of the job {ROOT / 'stashtrace/probes/__init__.py'}\n", "")
    rows, _, texts, losses = recorded(tmp_path / "run")
    assert (rows["span"], rows["instant"], texts, losses) == (1, 1, ["mine"], {})


# A whole job -------------------------------------------------------------------------------------

JOB = """
    import json, sys
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset
    import stashtrace

    class Rows(Dataset):
        def __len__(self):
            return 24
        def __getitem__(self, index):
            return torch.full((4,), float(index))

    if __name__ == "__main__":
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for rows in DataLoader(Rows(), batch_size=4, num_workers=1):
            with stashtrace.annotate("step of the job"):
                model(rows).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        dist.barrier()
        dist.destroy_process_group()
        print(json.dumps([list(sys.version_info[:2]), "numpy" in sys.modules, stashtrace.__file__]))
"""
PROBE_RECORDS = ("phase_span", "batch", "collective_call", "collective_done", "group")


def job_counts(run: TracedRun) -> dict[str, int]:
    rows, _, texts, losses = recorded(run.directory)
    assert losses == {}
    texts = [text for text in texts if text != "gc" and not text.startswith("sampler ")]  # where these take long
    return {name: rows[name] for name in PROBE_RECORDS} | {text: texts.count(text) for text in set(texts)}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment with torch and what it needs, without numpy, stashtrace and anything of the tests."""
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("bare")
    packages = Path(torch.__file__).parents[1]
    (folder / "packages").mkdir()
    for entry in packages.iterdir():
        if not entry.name.lower().startswith(("numpy", "stashtrace", "__editable__", "_", "pytest")) and (
            entry.suffix != ".pth"
        ):
            (folder / "packages" / entry.name).symlink_to(entry)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=120)
    site = next((folder / "venv/lib").glob("python3*/site-packages"))
    (site / "packages.pth").write_text(f"{folder / 'packages'}\n")
    return str(folder / "venv/bin/python")


@pytest.fixture(scope="module")
def own_job(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    pytest.importorskip("torch")
    return run_traced(JOB, tmp_path_factory.mktemp("own-job"), ranks=2)


@pytest.mark.thorough
@pytest.mark.torch
def test_a_job_of_another_environment_is_recorded_fully(own_job: TracedRun, bare_python: str, tmp_path: Path) -> None:
    run = run_traced(JOB, tmp_path / "job", ranks=2, python=(bare_python,), env={"PYTHONPATH": ""})
    for version, has_numpy, package in run.results():
        assert (version, has_numpy) == (list(sys.version_info[:2]), False)
        assert package == str(ROOT / "stashtrace/__init__.py"), "its environment has none"
    assert job_counts(run) == job_counts(own_job)


@pytest.mark.torch
@pytest.mark.skipif("STASHTRACE_TEST_JOB_PYTHON" not in os.environ, reason="names a Python of any version with torch")
def test_a_job_of_another_python_is_recorded_fully(own_job: TracedRun, tmp_path: Path) -> None:
    """For a torch of about the same age; others may make other collectives."""
    for number, program in enumerate(os.environ["STASHTRACE_TEST_JOB_PYTHON"].split(os.pathsep)):
        run = run_traced(JOB, tmp_path / str(number), ranks=2, python=(program,), env={"PYTHONPATH": ""})
        assert run.results()[0][0] != list(sys.version_info[:2])
        assert job_counts(run) == job_counts(own_job)
