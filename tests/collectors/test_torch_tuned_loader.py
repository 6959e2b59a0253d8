"""What ``stashtrace tune`` asks of a job: other settings of its DataLoaders, and the losses of its backward passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from installed import needs_torch
from traced import run_traced

from stashtrace.lab.tune.losses import compare_losses, losses_of
from stashtrace.lab.tune.run_job import loader_facts, not_applied
from stashtrace.probes.torch.loader_settings import wanted_settings

pytestmark = pytest.mark.torch
needs_torch()

#: A loader whose data set makes another loader in each process, and one with settings of the script.
SCRIPT = """
import json, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        inner = DataLoader([index], num_workers=0)
        return torch.tensor([float(next(iter(inner)))]), inner.num_workers

class Own(DataLoader):
    pass

if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    loader = Own(Data(), 8, True, num_workers=1, prefetch_factor=3)
    plain = DataLoader(Data(), batch_size=8)
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    inner = set()
    for batch, workers in loader:
        optimizer.zero_grad()
        outputs = layer(batch)
        (outputs if sys.argv[1] == "2" else outputs.sum()).backward(*[torch.ones(8, 1)][: sys.argv[1] == "2"])
        optimizer.step()
        inner |= set(workers.tolist())
    try:
        DataLoader(Data(), no_such_option=1)
    except TypeError as error:
        unknown = [str(error), error.__context__ is None]
    names = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
    print(json.dumps({
        "loader": [getattr(loader, name) for name in names],
        "plain": [getattr(plain, name) for name in names],
        "inner": sorted(inner), "unknown": unknown, "name": DataLoader.__init__.__qualname__,
        "backward": torch.autograd.backward.__module__,
    }))
"""


def test_settings_take_the_place_of_those_of_the_script(tmp_path: Path) -> None:
    variables = {"STASHTRACE_LOADER": "num_workers=2,persistent_workers=1", "STASHTRACE_LOSSES": "1"}
    run = run_traced(SCRIPT, tmp_path, args=["1"], env=variables)
    said = run.results()[0]
    assert said["loader"] == [2, 3, True, False]
    assert said["plain"] == [2, 2, True, False]
    assert said["inner"] == [0]  # a worker cannot start workers
    assert "unexpected keyword argument 'no_such_option'" in said["unknown"][0]
    assert said["unknown"][1]
    assert (said["name"], said["backward"]) == ("DataLoader.__init__", "torch.autograd")
    assert len(losses_of(run.trace)[0]) == 8
    facts = [one for one in loader_facts(run.trace) if one.now["num_workers"]]
    assert [(one.applied, one.now["prefetch_factor"]) for one in facts] == [
        ({"num_workers": 2, "persistent_workers": True}, 3),
        ({"num_workers": 2, "persistent_workers": True}, 2),
    ]
    lines = SCRIPT.splitlines()
    assert [lines[one.line - 1].split(" = ")[0].strip() for one in facts] == ["loader", "plain"]
    settings = {"num_workers": "2", "pin_memory": "1", "bucket_cap_mb": "8"}
    assert not_applied(run.trace, settings) == {
        "pin_memory": "no DataLoader of the job takes it",
        "bucket_cap_mb": "the job makes no DistributedDataParallel",
    }


@pytest.mark.thorough
def test_without_workers_what_belongs_to_them_is_left_out(tmp_path: Path) -> None:
    run = run_traced(SCRIPT, tmp_path, args=["1"], env={"STASHTRACE_LOADER": "prefetch_factor=5,persistent_workers=1"})
    said = run.results()[0]
    assert said["loader"] == [1, 5, True, False]
    assert said["plain"] == [0, None, False, False]
    assert losses_of(run.trace) == {}


@pytest.mark.thorough
def test_losses_are_those_of_the_job(tmp_path: Path) -> None:
    """Equal for equal seeds, however the batches are made; a loss that is no number is summed."""
    found = {}
    for name, seed, loader in (("a", "1", ""), ("b", "1", "num_workers=3"), ("c", "5", ""), ("d", "2", "")):
        variables = {"STASHTRACE_LOADER": loader, "STASHTRACE_LOSSES": "1"}
        found[name] = losses_of(run_traced(SCRIPT, tmp_path / name, args=[seed], env=variables).trace)
    assert len(found["a"][0]) == 8  # of ten: the last two wait for the next chunk
    assert compare_losses(found["a"], found["b"]).verdict == "equal"
    assert compare_losses(found["a"], found["c"]).verdict == "different"
    assert len(found["d"][0]) == 8


def test_a_text_that_is_none(tmp_path: Path) -> None:
    for text in ("num_workers", "num_workers=x", "batch_size=4", "num_workers=-1"):
        with pytest.raises(ValueError, match="is no setting of a DataLoader"):
            wanted_settings(text)
    run = run_traced(SCRIPT, tmp_path, args=["1"], env={"STASHTRACE_LOADER": "workers=4"})
    assert run.results()[0]["loader"][0] == 1
    assert "loader_not_changed" in {run.trace.text(int(code)) for code in run.trace.losses["name_code"]}
