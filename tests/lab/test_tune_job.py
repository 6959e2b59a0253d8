"""Real runs of a job with the settings that no replay predicts: shares of the CPUs, and copies of files."""

from __future__ import annotations

import os
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
from forked_commands import environment
from ports import free_port

from stashtrace.errors import DataLossWarning
from stashtrace.lab.tune.losses import compare_losses
from stashtrace.lab.tune.run_job import TunedJob
from stashtrace.lab.tune.settings import FILES, PINNING
from stashtrace.loading.load import load_trace
from stashtrace.record.staged_files import Copy, write_staged_list
from stashtrace.schema.kinds import IoFlag, IoOp
from stashtrace.schema.trace import Trace

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TRAIN = """
    import os
    import sys
    from functools import partial
    import torch
    import torch.distributed as dist
    import torch.multiprocessing

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 400

        def __getitem__(self, index):
            with open(os.path.join(sys.argv[1], f"{index % 20}.bin"), "rb") as file:
                return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).float()

    def tell(rank, *_):
        with open(f"cpus-{rank}", "a") as file:
            print(*sorted(os.sched_getaffinity(0)), sep=",", file=file)

    def train(rank, size, port):
        torch.manual_seed(1)
        torch.set_num_threads(1)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=size)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        tell(rank)
        for batch in torch.utils.data.DataLoader(Samples(), 4, num_workers=1, worker_init_fn=partial(tell, rank)):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        dist.destroy_process_group()

    if __name__ == "__main__":
        if "spawn" in sys.argv:
            torch.multiprocessing.spawn(train, (2, int(sys.argv[3])), 2)
        else:
            train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_PORT"])
"""
CPUS = sorted(os.sched_getaffinity(0))


def load(directory: str) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        return load_trace(directory)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "the data"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 64)
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])  # it compiles nothing
    return folder


def torchrun(data: Path) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, "train.py", str(data)]


def job_of(words: list[str], tmp_path: Path, staged: Path | None = None) -> TunedJob:
    (tmp_path / "runs of it").mkdir()
    return TunedJob(words, tmp_path / "runs of it", until_step=15, load=load, staged=staged)


@pytest.mark.thorough
def test_ranks_without_a_number_on_their_host_are_not_pinned(data: Path, tmp_path: Path) -> None:
    words = [sys.executable, "train.py", str(data), "spawn", str(free_port())]
    found = job_of(words, tmp_path).record({PINNING: ";".join(map(str, (CPUS * 2)[:2]))}).not_applied
    assert found == {PINNING: "the launcher gives ranks no number on their host, such as LOCAL_RANK"}


def test_ranks_keep_to_their_shares_and_copies_are_read_with_the_same_results(data: Path, tmp_path: Path) -> None:
    fast = tmp_path / "fast disk"
    fast.mkdir()
    copies = {}
    for file in data.iterdir():
        (fast / file.name).write_bytes(file.read_bytes())
        own = file.stat()
        copies[str(file)] = Copy(str(fast / file.name), own.st_size, own.st_mtime_ns)
    staged = tmp_path / "staged.list"
    write_staged_list(staged, copies)
    tuned = job_of(torchrun(data), tmp_path, staged)
    shares = {PINNING: f"{CPUS[0]};{CPUS[1]}"} if len(CPUS) > 1 else {}
    plain = tuned.record(shares)
    assert not plain.not_applied
    if shares:
        reported = {int(path.name[-1]): path.read_text().split() for path in tmp_path.glob("cpus-*")}
        assert reported == {0: [str(CPUS[0])] * 2, 1: [str(CPUS[1])] * 2}, "each rank and its worker"
    assert [(one.name, one.value) for one in tuned.candidates(shares) if one.name == FILES] == [(FILES, str(staged))]
    changed = tuned.record({FILES: str(staged)})
    assert not changed.not_applied
    assert compare_losses(plain.losses, changed.losses).verdict == "equal"
    for number in (0, 1):  # calls on a copy have the name that was asked for, and a mark
        trace = load(str(tmp_path / "runs of it" / f"run-{number}"))
        assert trace.ranks.tolist() == [0, 1]
        reads = trace.io.take(trace.io["op_code"] == IoOp.READ)
        of_data = np.array([trace.text(code).startswith(f"{data}/") for code in reads["path_code"].tolist()])
        is_copy = (reads["io_flags"][of_data] & IoFlag.STAGED) != 0
        assert len(is_copy)
        assert is_copy.all() if number else not is_copy.any()
