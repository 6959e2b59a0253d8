"""Brackets against kernels on a real device: the same steps attributed twice must agree to 3 % of the step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from installed import needs_gpu

import stashtrace

ROOT = Path(__file__).resolve().parents[2]
#: Of the step.
TOLERANCE = 0.03
LOOP = """
import torch
weights = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(weights.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(64 * 40, 2048))
for (batch,) in torch.utils.data.DataLoader(data, batch_size=64, num_workers=1):
    weights(batch.cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
"""


pytestmark = needs_gpu()


def test_brackets_agree_with_kernels(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "stashtrace", "run", "--out", str(out), "--kernels", "--kernels-steps", "10:20"]
    subprocess.run(
        [*command, "--", sys.executable, str(script)],
        check=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    table = stashtrace.analyze(stashtrace.load(out), "agreement")
    assert len(set(table["step"].tolist())) >= 8
    # What brackets only bound is compared by its bounds, the rest by its point.
    for row in table.rows():
        if row["kind"] in ("launch", "sync", "other", "compute"):
            assert row["low_ns"] <= row["kernels_ns"] * (1 + TOLERANCE)
        else:
            assert abs(row["difference_ratio"]) <= TOLERANCE, row
