"""The trackers themselves, in an environment that has them: STASHTRACE_TRACKERS_PYTHON names its Python.

It needs this package, torch, wandb, mlflow-skinny, tensorboard, trackio, and for the callbacks lightning, transformers
and accelerate. Nothing leaves the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("STASHTRACE_TRACKERS_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="STASHTRACE_TRACKERS_PYTHON names no Python with the trackers")

BEGIN = {
    "wandb": "import wandb; r = wandb.init(project='demo', mode='offline'); r.log({'loss': 1}); end = r.finish",
    "mlflow": "import mlflow; mlflow.log_metric('loss', 1.0); end = mlflow.end_run",
    "tensorboard": "from torch.utils.tensorboard import SummaryWriter; w = SummaryWriter('tb'); end = w.close",
    "trackio": "import trackio; trackio.init('demo', embed=False); trackio.log({'loss': 1}); end = trackio.finish",
}
#: Prints what the tracker holds of the run, as JSON.
READ = {
    "wandb": """
        import glob, json, struct
        from wandb.proto import wandb_internal_pb2 as pb
        found = {}
        for path in glob.glob("wandb/offline-run-*/*.wandb"):
            data, at = open(path, "rb").read(), 7  # one block of LevelDB's log format after wandb's own header
            assert len(data) < 32768
            while at + 7 <= len(data):
                _, size, _ = struct.unpack_from("<IHB", data, at)
                record = pb.Record.FromString(data[at + 7 : at + 7 + size])
                at += 7 + size
                for item in [*record.summary.update, *record.history.item]:
                    found["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
        print(json.dumps(found))
    """,
    "mlflow": """
        import json, mlflow
        (run,) = mlflow.search_runs(output_format="list")
        print(json.dumps({**run.data.metrics, **run.data.tags}))
    """,
    "tensorboard": """
        import json
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        events = EventAccumulator("tb"); events.Reload()
        found = {}
        for tag in events.Tags()["tensors"]:
            proto = events.Tensors(tag)[0].tensor_proto
            found[tag] = proto.string_val[0].decode() if proto.string_val else proto.float_val[0]
        print(json.dumps(found))
    """,
    "trackio": """
        import json
        from trackio.sqlite_storage import SQLiteStorage
        (name,) = SQLiteStorage.get_runs("demo")
        print(json.dumps(SQLiteStorage.get_logs("demo", name)[-1]))
    """,
}


def python(folder: Path, *words: str) -> str:
    environment = dict(
        os.environ,
        PYTHONPATH=str(ROOT),
        TRACKIO_DIR=str(folder / "trackio"),
        MLFLOW_TRACKING_URI=f"file:{folder}/mlruns",
        MLFLOW_ALLOW_FILE_STORE="true",
    )
    done = subprocess.run([PYTHON, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr if "stashtrace" in words else done.stdout


@pytest.mark.parametrize("tracker", BEGIN)
def test_a_run_gets_the_answers(tmp_path: Path, tracker: str) -> None:
    (tmp_path / "job.py").write_text(
        f"{BEGIN[tracker]}\nimport stashtrace\nfor _ in range(30): sum(range(20_000)); stashtrace.step()\nend()\n"
    )
    said = python(tmp_path, "-m", "stashtrace", "run", "--out", "run", "--log", tracker, "--", PYTHON, "job.py")
    assert f"logged to {tracker} run " in said
    found = json.loads(python(tmp_path, "-c", textwrap.dedent(READ[tracker])).splitlines()[-1])
    ratios = [float(v) for k, v in found.items() if k.endswith("_ratio") and "own_cpu" not in k]
    assert sum(ratios) == pytest.approx(1.0, abs=1e-5)
    assert found["stashtrace/headline"]
    assert "loss" in found or tracker == "tensorboard" or tracker == "trackio", "the job's figures stay"


CALLBACKS = {
    "lightning": """
        import lightning.pytorch as L, stashtrace.callbacks
        class Net(L.LightningModule):
            def __init__(self): super().__init__(); self.layer = torch.nn.Linear(4, 4)
            def training_step(self, batch, index): return self.layer(batch[0]).pow(2).mean()
            def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.1)
        callback = stashtrace.callbacks.LightningCallback(every_s=0)
        logger = L.loggers.CSVLogger(".")
        trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=logger, enable_progress_bar=False,
                            enable_checkpointing=False, callbacks=[callback], accumulate_grad_batches=2)
        trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=4))
        shown = open(logger.log_dir + "/metrics.csv").read()
    """,
    "transformers": """
        import transformers, stashtrace.callbacks
        class Net(torch.nn.Module):
            def __init__(self): super().__init__(); self.layer = torch.nn.Linear(4, 4)
            def forward(self, x=None, labels=None): return {"loss": self.layer(x).pow(2).mean()}
        class Seen(transformers.TrainerCallback):
            logs = []
            def on_log(self, args, state, control, logs=None, **_): self.logs.append(dict(logs))
        arguments = transformers.TrainingArguments(
            output_dir="out", num_train_epochs=1, logging_steps=5, report_to="none", per_device_train_batch_size=4,
            use_cpu=True, save_strategy="no", disable_tqdm=True)
        rows = [{"x": x, "labels": x} for (x,) in data]
        trainer = transformers.Trainer(model=Net(), args=arguments, train_dataset=rows, callbacks=[Seen()])
        stashtrace.callbacks.mark_trainer_steps(trainer)
        trainer.train()
        shown = str(Seen.logs)
    """,
    "accelerate": """
        import accelerate, stashtrace.callbacks
        class Tracker(accelerate.tracking.GeneralTracker):
            name, requires_logging_directory, tracker, logs = "own", False, None, []
            def store_init_configuration(self, values): pass
            def log(self, values, step=None, **_): self.logs.append(values)
        own = Tracker()
        accelerator = accelerate.Accelerator(cpu=True, log_with=own)
        accelerator.init_trackers("demo")
        model = torch.nn.Linear(4, 4)
        model, optimizer, loader = accelerator.prepare(
            model, torch.optim.SGD(model.parameters(), 0.1), torch.utils.data.DataLoader(data, batch_size=4))
        stashtrace.callbacks.mark_accelerate_steps(accelerator, every_s=0)
        for (x,) in loader:
            accelerator.backward(model(x).pow(2).mean()); optimizer.step(); optimizer.zero_grad()
        shown = str(own.logs)
    """,
}


@pytest.mark.parametrize("framework", CALLBACKS)
def test_callbacks_mark_steps_and_log(tmp_path: Path, framework: str) -> None:
    """The live figures are planted: who follows a run writes them."""
    planted = {
        "newest_ns": 2_000_000_000,
        "newest_count": 10,
        "newest_stall_ns": {"fetch": 500_000_000, "compute": 15e8},
    }
    script = f"""
        import json, os, torch
        place = os.path.join(os.environ["STASHTRACE_DIR"], "live-" + os.uname().nodename + ".json")
        json.dump({{"ranks": {{"0": {planted!r}}}}}, open(place, "w"))
        data = torch.utils.data.TensorDataset(torch.randn(80, 4))
    """
    job = textwrap.dedent(script) + textwrap.dedent(CALLBACKS[framework])
    job += "\nassert 'stashtrace/live/step_s' in shown and '0.25' in shown, shown\n"
    (tmp_path / "job.py").write_text(job)
    python(tmp_path, "-m", "stashtrace", "run", "--out", "run", "--", PYTHON, "job.py")
    counts = "import stashtrace; print(len(stashtrace.analyze(stashtrace.load('run'), 'steps')))"
    assert python(tmp_path, "-c", counts).strip() == "20"
