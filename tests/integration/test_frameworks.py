"""Training loops of frameworks, as their users write them: the steps that are found are the updates they make.

Frameworks are not dependency: each test is skipped where its framework is not installed. To run them all, name an
environment in ``STASHTRACE_TEST_PYTHON`` (``pip install torch lightning transformers accelerate
webdataset``).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from traced import PYTHON, ROOT

import stashtrace

HEAD = """
import atexit, pathlib, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
spent = []
atexit.register(lambda: pathlib.Path("spent").write_text(str(sum(spent))))

def decode():
    begin = time.monotonic_ns()
    while time.monotonic_ns() < begin + 4_000_000: pass
    spent.append(time.monotonic_ns() - begin)

class Rows(Dataset):
    def __init__(self, count): self.count = count
    def __len__(self): return self.count
    def __getitem__(self, i):
        decode()
        return torch.full((8,), float(i)), i % 3

def net(): return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
"""
LIGHTNING = """
import lightning
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()
    def training_step(self, batch, index): return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch, index): self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters())

lightning.Trainer(
    accelerator="cpu", devices=1, max_epochs=3, accumulate_grad_batches=2, num_sanity_val_steps=0, logger=False,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir="out",
).fit(Net(), DataLoader(Rows(32), 4), DataLoader(Rows(8), 4))
"""
TRAINER = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
class Text(Rows):
    def __getitem__(self, i):
        super().__getitem__(i)
        return {"input_ids": torch.arange(i, i + 8) % 50, "labels": torch.arange(i, i + 8) % 50}

model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2))
how = TrainingArguments(
    "out", per_device_train_batch_size=4, per_device_eval_batch_size=4, gradient_accumulation_steps=2,
    num_train_epochs=3, eval_strategy="epoch", save_strategy="epoch", report_to=[], use_cpu=True, disable_tqdm=True,
)
Trainer(model, how, train_dataset=Text(32), eval_dataset=Text(8)).train()
"""
ACCELERATE = """
from accelerate import Accelerator
how = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = net()
model, optimizer, train, check = how.prepare(
    model, torch.optim.AdamW(model.parameters()), DataLoader(Rows(32), 4), DataLoader(Rows(8), 4))
for epoch in range(3):
    for rows, kinds in train:
        with how.accumulate(model):
            how.backward(nn.functional.cross_entropy(model(rows), kinds))
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        for rows, kinds in check:
            how.gather(model(rows))
"""
WEBDATASET = """
import numpy, webdataset
for name, count in (("train", 32), ("check", 8)):
    with webdataset.TarWriter(f"{name}.tar") as shard:
        for i in range(count):
            shard.write({"__key__": f"{i:04d}", "npy": numpy.full(8, i, numpy.float32), "cls": i % 3})

def late(row):
    decode()
    return row

def loader(name):
    rows = webdataset.WebDataset(f"{name}.tar", shardshuffle=False).decode().to_tuple("npy", "cls").map(late).batched(4)
    return webdataset.WebLoader(rows, batch_size=None)

model = net()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    for i, (rows, kinds) in enumerate(loader("train")):
        nn.functional.cross_entropy(model(rows), kinds).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        for rows, kinds in loader("check"):
            model(rows)
"""
#: All of them: three epochs of four updates of two micro-batches of four rows, and two batches of validation.
LOOPS = {"lightning": LIGHTNING, "transformers": TRAINER, "accelerate": ACCELERATE, "webdataset": WEBDATASET}
EPOCHS, UPDATES, CHECKS = 3, 4, 2


@pytest.mark.parametrize("name", LOOPS)
def test_steps_are_the_updates(name: str, tmp_path: Path) -> None:
    found = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    if subprocess.run([PYTHON, "-c", found], check=False).returncode:
        pytest.skip(f"{name} is not installed")
    (tmp_path / "train.py").write_text(HEAD + LOOPS[name], encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = [PYTHON, "-m", "stashtrace", "run", "--out", "run", "--", PYTHON, "train.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]

    trace = stashtrace.load(tmp_path / "run")
    table = stashtrace.analyze(trace, "steps")
    kinds = table["kind"].tolist()
    # An update in the middle of an epoch, then what the loop validates with before the next epoch.
    assert kinds == (["train"] * UPDATES + ["validation"] * CHECKS) * EPOCHS
    train = table["kind"] == "train"
    assert table["sub_steps_count"][train].tolist() == [2] * UPDATES * EPOCHS
    assert (table["begin_ns"][1:] == table["end_ns"][:-1]).all()

    stalls = [row for row in stashtrace.analyze(trace, "stalls", warmup=True).rows() if row["step"] >= 0]
    whole = sum(row["stall_ns"] for row in stalls)
    assert whole == int((table["end_ns"] - table["begin_ns"]).sum())
    # What the rows cost by the script's clock is a part of each step, and hardly more is counted with it.
    spent = int((tmp_path / "spent").read_text())
    prep = sum(row["stall_ns"] for row in stalls if row["kind"] == "prep")
    assert spent * 0.98 <= prep <= spent * 1.3
