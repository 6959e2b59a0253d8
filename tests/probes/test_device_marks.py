"""Which marks go to the device, numbered how. The native half and the frameworks are stood in for at their boundary."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stashtrace.probes import device_marks as module
from stashtrace.probes import recorder
from stashtrace.probes.process import StepWindow
from stashtrace.schema.kinds import Bracket


class Device:
    """What the native half was asked for."""

    def __init__(self) -> None:
        self.active = True
        self.collectors = ["cuda"]
        self.calls: list[tuple[Any, ...]] = []

    def config(self) -> dict[str, Any]:
        return {"collectors": self.collectors}

    def device_active(self) -> bool:
        return self.active

    def device_mark(self, kind: int, stream: int, correlation: int) -> None:
        self.calls.append((Bracket(kind).name, stream, correlation))

    def device_bracket_begin(self, kind: int, stream: int, correlation: int) -> int:
        self.calls.append((Bracket(kind).name, stream, "begin"))
        return 77

    def device_bracket_end(self, token: int, correlation: int) -> None:
        self.calls.append(("end", token, correlation))


class Torch:
    """The part of torch that is asked: is CUDA up, and which stream is current."""

    def __init__(self) -> None:
        self.initialized = True
        self.cuda = SimpleNamespace(is_initialized=lambda: self.initialized)
        self._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 100 + device, _cuda_getDevice=lambda: 3)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    native = Device()
    monkeypatch.setattr(module, "native", native)
    monkeypatch.setattr(module, "window", StepWindow(""))
    monkeypatch.setitem(sys.modules, "torch", Torch())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "cupy", None)  # type: ignore[arg-type]
    return native


def test_marks_of_a_loop(device: Device) -> None:
    marks, window = module.DeviceMarks(), module.window
    for index in range(2):
        marks.wait_ends(marks.wait_begins(), index)
        window.forward_begins()
        marks.phase_begins()  # forward
        marks.phase_begins()  # backward
        window.updated()
        marks.update_ends()
    assert device.calls == [
        ("STEP", 103, 0),
        ("BATCH_WAIT", 103, "begin"),
        ("end", 77, 0),
        ("MARK", 103, 0),
        ("MARK", 103, 0),
        ("STEP", 103, 1),
        ("BATCH_WAIT", 103, "begin"),
        ("end", 77, 1),
        ("MARK", 103, 0),
        ("MARK", 103, 0),
        ("STEP", 103, 2),
    ]


def test_two_updates_of_one_step_carry_its_number_twice(device: Device) -> None:
    marks = module.DeviceMarks()
    for _ in range(2):
        module.window.updated()
        marks.update_ends()
    module.window.forward_begins()
    marks.update_ends()
    assert [number for _, _, number in device.calls] == [1, 1, 2]


def test_where_the_user_marks_steps_updates_do_not(device: Device) -> None:
    marks = module.DeviceMarks()
    marks.step_ends()
    module.window.marked()
    marks.update_ends()
    marks.step_ends()
    assert device.calls == [("STEP", 103, 1), ("STEP", 103, 2)]


def test_a_window_of_steps_begins_with_its_mark(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.set_recording = lambda on: None  # type: ignore[attr-defined]
    device.kernels_step = lambda step: None  # type: ignore[attr-defined]
    monkeypatch.setattr("stashtrace.probes.process.native", device)
    monkeypatch.setattr(module, "window", StepWindow("1:2"))
    marks = module.DeviceMarks()
    for _ in range(3):
        module.window.forward_begins()
        marks.phase_begins()
        module.window.updated()
        marks.update_ends()
    assert device.calls == [("STEP", 103, 1), ("STEP", 103, 2)]


def test_nothing_before_the_framework_has_a_device(device: Device) -> None:
    torch: Any = sys.modules["torch"]
    torch.initialized = False
    marks = module.DeviceMarks()
    marks.wait_ends(marks.wait_begins(), 0)
    marks.phase_begins()
    marks.step_ends()
    assert device.calls == []
    torch.initialized = True
    marks.step_ends()
    assert device.calls == [("STEP", 103, 1)]


@pytest.mark.parametrize("what", ["inactive", "collector off"])
def test_nothing_without_a_driver_or_the_collector(device: Device, what: str) -> None:
    device.active = what != "inactive"
    device.collectors = ["cuda"] if what == "inactive" else ["posix_io"]
    marks = module.DeviceMarks()
    marks.step_ends()
    assert marks.wait_begins() == 0
    assert device.calls == []


def test_cupy_alone(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    current = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=9)))
    monkeypatch.setitem(sys.modules, "cupy", current)  # type: ignore[arg-type]
    module.DeviceMarks().step_ends()
    assert device.calls == [("STEP", 9, 1)]


def test_a_forked_child_asks_again(device: Device) -> None:
    marks = module.DeviceMarks()
    marks.step_ends()
    marks.forget()
    sys.modules["torch"].initialized = False  # type: ignore[attr-defined]
    marks.step_ends()
    assert len(device.calls) == 1


def test_a_framework_that_has_changed_is_reported_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("moved")

    said: list[str] = []
    monkeypatch.setattr(recorder, "unavailable", lambda collector, what, why: said.append(why))
    sys.modules["torch"].cuda.is_initialized = broken  # type: ignore[attr-defined]
    marks = module.DeviceMarks()
    for _ in range(3):
        marks.step_ends()
    assert said == ["RuntimeError('moved')"]
    assert device.calls == []
