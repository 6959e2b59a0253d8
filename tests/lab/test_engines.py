"""The engines of torch and CuPy against doubles of both: what is called, what is timed, what is found out."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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


class FakeDevice:
    """Where both doubles keep what was asked of them. Work takes 10 us and 1 ns a byte."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.calls: list[tuple[Any, ...]] = []
        self.broken: set[str] = set()

    def work(self, name: str, size_bytes: int, *facts: Any) -> None:
        if name in self.broken:
            raise RuntimeError(f"{name} is not supported\nat line 7")
        self.calls.append((name, size_bytes, *facts))
        self.now_ns += 10_000 + size_bytes


class Event:
    def __init__(self, device: FakeDevice) -> None:
        self._device, self.at_ns = device, -1

    def record(self, stream: Any = None) -> None:
        self.at_ns = self._device.now_ns

    def synchronize(self) -> None:
        assert self.at_ns >= 0

    def elapsed_time(self, other: Event) -> float:
        return (other.at_ns - self.at_ns) / 1e6


class Tensor:
    """A buffer on some device."""

    def __init__(self, device: FakeDevice, count: int, item_bytes: int, place: str, pinned: bool = False) -> None:
        self._device, self.size, self.item_bytes = device, count, item_bytes
        self.place, self.pinned, self.values = place, pinned, 0.0
        self.nbytes = count * item_bytes
        self.data = SimpleNamespace(ptr=id(self))

    def fill_(self, value: float) -> Tensor:
        self.values = value
        return self

    fill = fill_

    def item(self) -> float:
        return self.values

    def get(self) -> list[float]:
        return [self.values]

    def copy_(self, source: Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        assert source.nbytes == self.nbytes
        kind = "pinned" if source.pinned or self.pinned else "pageable"
        self._device.work("copy", self.nbytes, source.place, self.place, kind)


def fake_torch(device: FakeDevice, devices: int = 2) -> Any:
    """What ``engines`` needs of torch."""
    items = {"float32": 4, "uint8": 1, "int32": 4}

    def empty(count: int, *, dtype: str = "float32", device: str = "cpu", pin_memory: bool = False) -> Tensor:
        return Tensor(fake, count, items[dtype], device, pin_memory)

    fake = device

    def collective(name: str) -> Any:
        def call(first: Tensor, second: Any = None) -> None:
            if first.place == "cpu":
                return  # the barrier and the vote
            given = second if isinstance(second, Tensor) else first
            fake.work(name, given.nbytes, first.nbytes)

        return call

    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_gloo_available=lambda: True,
        is_nccl_available=lambda: True,
        init_process_group=lambda backend, **facts: fake.calls.append(("init", backend, facts["rank"])),
        destroy_process_group=lambda: fake.calls.append(("destroy", 0)),
        all_reduce=collective("all_reduce"),
        all_gather_into_tensor=collective("all_gather"),
        reduce_scatter_tensor=collective("reduce_scatter"),
        all_to_all_single=collective("all_to_all"),
        broadcast=collective("broadcast"),
    )
    cuda = SimpleNamespace(
        set_device=lambda index: None,
        Event=lambda enable_timing: Event(fake),
        synchronize=lambda: None,
        is_available=lambda: devices > 0,
        device_count=lambda: devices,
        get_device_name=lambda index: f"Fake {index}",
        mem_get_info=lambda index: (1 << 30, 2 << 30),
        can_device_access_peer=lambda a, b: b == 1,
        nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
    )
    return SimpleNamespace(
        __version__="2.99",
        float32="float32",
        uint8="uint8",
        int32="int32",
        empty=empty,
        cuda=cuda,
        zeros=lambda count, dtype="float32": empty(count, dtype=dtype),
        distributed=distributed,
        version=SimpleNamespace(cuda="13.0"),
    )


def fake_cupy(device: FakeDevice, devices: int = 2) -> tuple[Any, Any]:
    """What ``calibrate.engines`` needs of CuPy and of its NCCL."""
    buffers: dict[int, Tensor] = {}
    stream = SimpleNamespace(ptr=77, synchronize=lambda: None)

    def zeros(count: int, dtype: str) -> Tensor:
        made = Tensor(device, count, {"float32": 4, "uint8": 1}[dtype], f"cuda:{current[-1]}")
        buffers[made.data.ptr] = made
        return made

    current = [0]

    class Device:
        def __init__(self, index: int) -> None:
            self._index = index

        def use(self) -> None:
            current[-1] = self._index

        def __enter__(self) -> None:
            current.append(self._index)

        def __exit__(self, *_: object) -> None:
            current.pop()

    def copy(target: int, source: int, size_bytes: int, kind: int, on: int) -> None:
        def name(pointer: int) -> str:
            return buffers[pointer].place if pointer in buffers else "cpu"

        assert (kind, on) == (4, 77)
        device.work("copy", size_bytes, name(source), name(target))

    runtime = SimpleNamespace(
        memcpyAsync=copy,
        memcpyDefault=4,
        deviceSynchronize=lambda: None,
        getDeviceCount=lambda: devices,
        deviceCanAccessPeer=lambda a, b: True,
        runtimeGetVersion=lambda: 13000,
        memGetInfo=lambda: (1 << 30, 2 << 30),
        getDeviceProperties=lambda index: {"name": b"Fake %d" % index},
    )
    cuda = SimpleNamespace(
        Device=Device,
        Stream=lambda non_blocking: stream,
        Event=lambda: Event(device),
        runtime=runtime,
        get_elapsed_time=lambda a, b: a.elapsed_time(b),
        get_current_stream=lambda: stream,
        alloc_pinned_memory=bytearray,
    )
    return SimpleNamespace(__version__="14", zeros=zeros, cuda=cuda), _nccl(device, stream)


def _nccl(device: FakeDevice, stream: Any) -> Any:
    def launch(name: str) -> Any:
        def call(*arguments: int) -> None:
            assert arguments[-1] == stream.ptr
            count = arguments[2] if name not in ("send", "recv") else arguments[1]
            device.work(name, count * 4)

        return call

    class NcclCommunicator:
        def __init__(self, ranks: int, identity: tuple[int, ...], rank: int) -> None:
            device.calls.append(("init", ranks, identity, rank))

        def __getattr__(self, name: str) -> Any:
            return launch(name)

        def destroy(self) -> None:
            device.calls.append(("destroy", 0))

    return SimpleNamespace(
        NcclCommunicator=NcclCommunicator,
        NCCL_FLOAT32=7,
        NCCL_SUM=0,
        get_unique_id=lambda: (1, -2, 3),
        get_version=lambda: 22809,
        groupStart=lambda: device.calls.append(("groupStart", 0)),
        groupEnd=lambda: device.calls.append(("groupEnd", 0)),
    )


@contextlib.contextmanager
def installed(monkeypatch: Any, **modules: Any) -> Any:
    """Make the doubles importable under their names; None hides what is really installed."""
    import sys

    for name in ("torch", "torch.distributed", "cupy", "cupy.cuda.nccl"):
        monkeypatch.setitem(sys.modules, name, modules.get(name.replace(".", "_")))
    yield


SIZES = [1024, 4096, 16384]


def ticked(engine, operations):
    """Measure by a clock that moves each time it is read."""
    return measure(engine, operations, SIZES, 2.0, clock=itertools.count(1.0).__next__)


def check_collectives(engine, device: FakeDevice) -> None:
    found = ticked(engine, COLLECTIVES)
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
    found = ticked(TorchCollectives(fake_torch(device), "nccl", 0, 2, "meet"), COLLECTIVES)
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
    found = ticked(engines[0], COLLECTIVES[:4])
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
    found = ticked(TorchCopies(fake_torch(device)), (*COPIES, "p2p_0_1"))
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
    found = ticked(CupyCopies(fake_cupy(device)[0]), (*COPIES, "p2p_0_1"))
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
