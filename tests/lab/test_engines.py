"""The engines of torch and CuPy against doubles of both: what is called, what is timed, what is found out."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments_fakes import FakeDevice, fake_cupy, fake_torch, installed

from stashtrace.lab.calibrate import calibrate_worker
from stashtrace.lab.calibrate.calibrate_worker import measure
from stashtrace.lab.calibrate.engines import (
    CupyCollectives,
    CupyCopies,
    TorchCollectives,
    TorchCopies,
    cupy_facts,
    torch_facts,
)
from stashtrace.lab.calibrate.measure import COLLECTIVES, COPIES

SIZES = [1024, 4096, 16384]


def ticking(step: float = 1.0):
    """A clock that moves each time it is read."""
    now = [0.0]

    def read() -> float:
        now[0] += step
        return now[0]

    return read


def check_collectives(engine, device: FakeDevice) -> None:
    found = measure(engine, COLLECTIVES, SIZES, 2.0, clock=ticking())
    assert (found.timing, found.left_out) == ("device", {})
    for op in COLLECTIVES:
        for size in SIZES:
            lengths = {end - begin for begin, end in found.stamps[op][size]}
            assert len(lengths) == 1, op
            assert lengths.pop() >= 10_000 + size // 2
    assert {name for name, *_ in device.calls} >= {"init", "broadcast"}


def test_torch_over_nccl() -> None:
    device = FakeDevice()
    engine = TorchCollectives(fake_torch(device), "nccl", 1, 2, "meet")
    check_collectives(engine, device)
    gathered = {(size, out) for name, size, *rest in device.calls if name == "all_gather" for out in rest}
    assert (1024, 2048) in gathered
    scattered = {(size, out) for name, size, *rest in device.calls if name == "reduce_scatter" for out in rest}
    assert (1024, 512) in scattered
    engine.close()
    assert device.calls[-1] == ("destroy", 0)


def test_an_operation_that_is_not_supported_is_left_out() -> None:
    device = FakeDevice()
    device.broken.add("all_to_all")
    found = measure(
        TorchCollectives(fake_torch(device), "nccl", 0, 2, "meet"), COLLECTIVES, SIZES, 2.0, clock=ticking()
    )
    assert found.left_out == {"all_to_all": "RuntimeError: all_to_all is not supported"}
    assert set(found.stamps) == set(COLLECTIVES) - {"all_to_all"}


def test_cupy_over_nccl(tmp_path: Path) -> None:
    device = FakeDevice()
    cupy, nccl = fake_cupy(device)
    engines = [CupyCollectives(cupy, nccl, rank, 2, str(tmp_path / "meet")) for rank in (0, 1)]
    assert {call for call in device.calls if call[0] == "init"} == {
        ("init", 2, (1, -2, 3), 0),
        ("init", 2, (1, -2, 3), 1),
    }
    ops = COLLECTIVES[:4]
    found = measure(engines[0], ops, SIZES, 2.0, clock=ticking())
    assert found.left_out == {}
    # An all-to-all of two ranks is two sends and two receives of half the size in one group.
    names = [name for name, *_ in device.calls]
    at = names.index("groupStart")
    assert names[at : at + 6] == ["groupStart", "send", "recv", "send", "recv", "groupEnd"]
    assert found.stamps["all_to_all"][1024][0] == (0, 4 * (10_000 + 512))
    assert found.stamps["all_reduce"][4096][0] == (0, 10_000 + 4096)
    assert engines[1].agree(True) is False, "only rank 0 has a vote"
    engines[0].close()
    assert device.calls[-1] == ("destroy", 0)


def test_torch_copies_go_the_named_way() -> None:
    device = FakeDevice()
    found = measure(TorchCopies(fake_torch(device)), (*COPIES, "p2p_0_1"), SIZES, 2.0, clock=ticking())
    assert found.left_out == {}
    ways = {call[2:] for call in device.calls}
    assert ways == {
        ("cpu", "cuda:0", "pinned"),
        ("cpu", "cuda:0", "pageable"),
        ("cuda:0", "cpu", "pinned"),
        ("cuda:0", "cpu", "pageable"),
        ("cuda:0", "cuda:0", "pageable"),
        ("cuda:0", "cuda:1", "pageable"),
    }
    assert found.stamps["h2d_pinned"][1024][0] == (0, 11_024)


def test_cupy_copies_go_the_named_way() -> None:
    device = FakeDevice()
    found = measure(CupyCopies(fake_cupy(device)[0]), (*COPIES, "p2p_0_1"), SIZES, 2.0, clock=ticking())
    assert found.left_out == {}
    ways = {call[2:] for call in device.calls}
    assert ways == {("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:0"), ("cuda:0", "cuda:1")}


def test_facts() -> None:
    known = torch_facts(fake_torch(FakeDevice()))
    assert known["devices"] == ["Fake 0", "Fake 1"]
    assert (known["peers"], known["nccl"], known["backends"]) == ([1], "2.28.9", ["gloo", "nccl"])
    cupy, nccl = fake_cupy(FakeDevice())
    assert cupy_facts(cupy, nccl)["nccl"] == "22809"
    assert cupy_facts(cupy, None)["backends"] == []
    assert torch_facts(fake_torch(FakeDevice(), devices=0))["devices"] == []


@pytest.mark.parametrize(
    ("torch_devices", "cupy_there", "library"), [(2, True, "torch"), (0, True, "cupy"), (0, False, "torch")]
)
def test_the_library_with_devices_is_taken(
    monkeypatch: pytest.MonkeyPatch, torch_devices: int, cupy_there: bool, library: str
) -> None:
    torch = fake_torch(FakeDevice(), torch_devices)
    cupy, nccl = fake_cupy(FakeDevice())
    modules = {"torch": torch, "torch_distributed": torch.distributed}
    with installed(monkeypatch, **modules, **({"cupy": cupy, "cupy_cuda_nccl": nccl} if cupy_there else {})):
        known = calibrate_worker.probe()
    assert known["library"] == library
    assert bool(known["devices"]) == (torch_devices > 0 or cupy_there)


def test_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed(monkeypatch):
        assert calibrate_worker.probe() == {"library": "", "backends": [], "devices": []}


def test_a_worker_measures_with_cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = FakeDevice()
    cupy, nccl = fake_cupy(device)
    task = {
        "what": "measure",
        "backend": "cuda",
        "library": "cupy",
        "ops": ["d2d"],
        "sizes_bytes": SIZES,
        "seconds": 0,
        "disk": "",
        "rank": 0,
        "ranks": 1,
        "rendezvous": str(tmp_path / "meet"),
    }
    with installed(monkeypatch, cupy=cupy, cupy_cuda_nccl=nccl):
        assert set(calibrate_worker.run(task)["stamps"]["d2d"]) == set(SIZES)
        assert calibrate_worker.run({**task, "backend": "nccl", "ops": ["all_reduce"], "ranks": 2})["rounds_count"] >= 1
