"""Ray Train: every worker records itself, by the variables of its runtime environment.

    python examples/cluster/ray_train.py --runs /shared/runs

All nodes see the folder of the runs, and have stashtrace at the same path (or the copy that `stashtrace env --into`
makes). When the job has ended, `stashtrace merge RUN` prints where the time of the steps went.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def recording_variables(run: Path) -> dict[str, str]:
    """Return the variables that make a process record itself into a new run directory."""
    run.mkdir(mode=0o700, parents=True)
    words = ["stashtrace", "env", "--format", "json", "--out", str(run), "--run-id", run.name]
    variables: dict[str, str] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return variables


def train(config: dict[str, Any]) -> None:
    """Train a small model on made-up numbers."""
    model = prepare_model(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(config["steps"]):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).pow(2).mean().backward()
        optimizer.step()


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    run = options.runs.absolute() / time.strftime("ray-%m%d-%H%M%S")
    # Ray starts workers with these variables, so the recorder is there before their first instruction.
    ray.init(runtime_env={"env_vars": recording_variables(run)})
    scaling = ScalingConfig(num_workers=options.workers, use_gpu=torch.cuda.is_available())
    TorchTrainer(train, train_loop_config={"steps": options.steps}, scaling_config=scaling).fit()
    print(f"stashtrace merge {run}")


if __name__ == "__main__":
    main()
