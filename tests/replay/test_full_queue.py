"""Launches: those that wait for a place in a full queue wait for the device, and what counts as time between them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from builders import MS, US, TraceBuilder

from stashtrace.analysis.graph import build
from stashtrace.analysis.registry import analyze
from stashtrace.replay import Change, what_if
from stashtrace.schema.kinds import DeviceCall
from stashtrace.schema.trace import Trace

STEPS = 10


@dataclass(frozen=True)
class Launcher:
    """A host that launches kernels on one stream, whose queue has some places, and waits for nothing else.

    Attributes
    ----------
    kernels
        Of a step.
    launch_us, kernel_us
        What a launch and a kernel take.
    places
        A launch returns when at most this many have not begun.
    """

    kernels: int = 600
    launch_us: float = 5.0
    kernel_us: float = 40.0
    places: int = 1022

    def times(self) -> tuple[list[float], list[float], list[float]]:
        """Call, return and begin of each kernel, in us."""
        called, returned, begun = [], [], []
        now = free = 0.0
        for number in range(STEPS * self.kernels):
            called.append(now)
            now += self.launch_us
            if number >= self.places:
                now = max(now, begun[number - self.places])
            returned.append(now)
            begun.append(max(called[-1] + self.launch_us, free))
            free = begun[-1] + self.kernel_us
        return called, returned, begun

    def step_us(self) -> float:
        """Mean step on the device without the first five."""
        *_, begun = self.times()
        return (begun[-1] - begun[5 * self.kernels - 1]) / (STEPS - 5)

    def trace(self) -> Trace:
        """What a profiler sees of it; a step ends on the host with its last launch."""
        called, returned, begun = ([round(at * US) for at in column] for column in self.times())
        trace = TraceBuilder()
        rank = trace.rank(0)
        stream = rank.gpu(0).stream("compute", compute=True)
        for number, (call, back, begin) in enumerate(zip(called, returned, begun, strict=True)):
            stream.kernel(begin, begin + round(self.kernel_us * US), "gemm", launch=(call, back))
            if number % self.kernels == 0:
                last = min(number + self.kernels, len(called)) - 1
                middle = (call + returned[last]) // 2
                rank.phase("forward", call + 1, middle).phase("optimizer", middle, returned[last])
        return trace.trace()


@pytest.mark.parametrize("places", [1022, 400])
@pytest.mark.parametrize("factor", [0.5, 0.25, 0.05])
def test_a_quicker_device_lets_launches_go(places: int, factor: float) -> None:
    """40 us a kernel: the device is the limit. Of 2 us a kernel, the launches of 5 us are."""
    recorded = Launcher(places=places)
    truth = Launcher(kernel_us=40.0 * factor, places=places).step_us()
    graph = build(recorded.trace())
    assert what_if(graph, []).replayed_ns == pytest.approx(recorded.step_us() * US, rel=0.01)
    answer = what_if(graph, [Change.parse(f"compute=x{factor}")])
    assert answer.middle_ns == pytest.approx(truth * US, rel=0.03)


def test_quicker_launches_do_not_help_a_full_queue() -> None:
    recorded = Launcher()
    answer = what_if(build(recorded.trace()), [Change.parse("launch=x0.5")])
    assert answer.middle_ns == pytest.approx(recorded.step_us() * US, rel=0.01)


@pytest.mark.parametrize("places", [1022, 400])
def test_time_with_a_full_queue_is_counted(places: int) -> None:
    """A launch takes 5 of each 40 us once the queue is full; the rest of the call is the wait for a place."""
    (row,) = analyze(Launcher(places=places).trace(), "launches").rows()
    called, returned, _ = Launcher(places=places).times()
    held = sum(back - call - 5.0 for call, back in zip(called, returned, strict=True))
    assert row["full_queue_ns"] == pytest.approx(held * US, rel=0.02)


def test_long_launches_behind_few_others_are_no_full_queue() -> None:
    """Every 50th launch takes 2 ms, for another reason: the device is never more than 50 launches behind."""
    trace = TraceBuilder()
    rank = trace.rank(0)
    stream = rank.gpu(0).stream("compute", compute=True)
    now = free = 0
    for _step in range(STEPS):
        began = now
        for number in range(200):
            back = now + (2000 * US if number % 50 == 0 else 5 * US)
            begin = max(back, free)
            stream.kernel(begin, begin + 20 * US, "gemm", launch=(now, back))
            now, free = back, begin + 20 * US
        rank.phase("forward", began + 1, (began + now) // 2).phase("optimizer", (began + now) // 2, now)
    table = analyze(trace.trace(), "launches")
    assert table["full_queue_ns"].sum() == 0
    answer = what_if(build(trace.trace()), [Change.parse("compute=x0.5")])
    assert answer.middle_ns > 7_000 * US  # four of the long launches stay in each step


LAUNCH_STEPS, LAUNCH_STEP = 6, 50 * MS


def launching(*, head_ns: int = 0, freeing_ns: int = 0, steps: int = LAUNCH_STEPS) -> Trace:
    """A host that launches a kernel of 5 ms every 10 ms, and in each step frees memory for so long.

    Before its first launch the recording has ``head_ns`` of the first step in which no device works.
    """
    trace = TraceBuilder()
    rank = trace.rank(0)
    gpu = rank.gpu(0)
    stream = gpu.stream("compute", compute=True)
    for step in range(steps):
        begin = step * (LAUNCH_STEP + freeing_ns) + (head_ns if step else 0)
        end = (step + 1) * (LAUNCH_STEP + freeing_ns) + head_ns
        at = begin + (head_ns if step == 0 else 0)
        if freeing_ns:
            gpu.call(DeviceCall.FREE, at + 2 * MS, at + 2 * MS + freeing_ns)
        for kernel in range(5):
            called = at + freeing_ns + 3 * MS + kernel * 9 * MS
            stream.kernel(called + 10 * US, called + 5 * MS, "gemm", launch=(called, called + 5 * US))
        rank.phase("forward", begin + 1, end - MS).phase("optimizer", end - MS, end)
    return trace.trace()


def saved_ns(trace: Trace) -> float:
    answer = what_if(build(trace), [Change.parse("launch=x0.5")])
    return answer.replayed_ns - answer.middle_ns


def test_half_the_time_between_launches_is_saved() -> None:
    """Of a step of 50 ms the host takes all, the device half."""
    assert saved_ns(launching()) == pytest.approx(LAUNCH_STEP / 2, rel=0.1)


def test_calls_that_free_memory_are_no_time_between_launches() -> None:
    assert saved_ns(launching(freeing_ns=40 * MS)) == pytest.approx(saved_ns(launching()), rel=0.05)


def test_what_was_before_the_first_launch_stays() -> None:
    trace = launching(head_ns=900 * MS, steps=1)
    whole = what_if(build(trace), [Change.parse("launch=x0.5")])
    assert whole.replayed_ns == pytest.approx(950 * MS, rel=0.02)
    assert whole.replayed_ns - whole.middle_ns == pytest.approx(LAUNCH_STEP / 2, rel=0.15)
