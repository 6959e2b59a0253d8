"""The script for mpirun of examples/cluster, as it stands, with the programs of Open MPI and MPICH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from forked_commands import EAGER_JOBS
from ports import free_port

from stashtrace.loading.load import load_trace

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "cluster" / "mpirun_dlrm.sh"
#: Program -> variables in which its processes find rank and size.
PROGRAMS = {
    "mpirun.openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpirun.mpich": ("PMI_RANK", "PMI_SIZE"),
}
TRAIN = """
    import os
    import sys
    import torch
    import torch.distributed as dist
    rank, size = (int(os.environ[name]) for name in sys.argv[1:3])
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"tcp://127.0.0.1:{sys.argv[3]}")
    table = torch.nn.EmbeddingBag(1000, 16)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(table, torch.nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randint(0, 1000, (64, 8))).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_script_records_each_rank_once(program: str, tmp_path: Path) -> None:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program} of the system")
    folder = tmp_path / "a job"
    (folder / "bin").mkdir(parents=True)
    for name, command in (("mpirun", f'"{found}"'), ("stashtrace", f'"{sys.executable}" -P -m stashtrace')):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nPYTHONPATH="{EAGER_JOBS}:{ROOT}" exec {command} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    (folder / "train.py").write_text(textwrap.dedent(TRAIN))
    own = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMI", "SLURM_"))}
    environment = {
        **own,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        # A test machine may have one processor, and root as its user.
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    words = ["bash", str(SCRIPT), "2", sys.executable, "train.py", *PROGRAMS[program], str(free_port())]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "runs").iterdir()
    trace = load_trace(run)
    assert trace.ranks.tolist() == [0, 1]
    assert set(trace.processes["world_size"][trace.processes["rank"] >= 0].tolist()) == {2}
    assert (done.stdout + done.stderr).count("timeline   stashtrace view") == 1, "one of the launchers merges"
