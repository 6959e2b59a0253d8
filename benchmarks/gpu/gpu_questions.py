"""Questions to a real driver that decide how the recorder may behave, and what a wrong answer would mean.

Each question runs in a separate process, since it may crash or hang: that too is an answer. Called by gpu_job.py.
Standard library only.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_float, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

from cuda_driver import CAPTURE_GLOBAL, CAPTURE_RELAXED, Driver

CAPTURE_INVALIDATED = 901  # CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
QUESTION_LIMIT_S = 40.0
#: Above this, the brackets of short kernels say more of the events than of the kernels.
WIDE_BRACKET_US = 10.0
#: Streams with timing events may take this much longer than without before they count as serialised.
SERIAL_RATIO = 1.5
#: Kernels of the legacy stream, and those of the two blocking streams between them: one behind the other instead of
#: side by side they take 1.9 times as long.
LEGACY_NS, BLOCKING_NS = 200_000, 2_000_000


class Answers(dict[str, Any]):
    """Print all answers at each new one: whoever dies in the middle has reported what was known."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        print(json.dumps(self), flush=True)


def on_a_bare_thread(call: Callable[[], Any]) -> Any:
    """Call on a thread that has no context, as the recorder's thread begins; what it returns."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(QUESTION_LIMIT_S / 2)
    return found[0] if found else "no answer"


def bare_thread_mode(driver: Driver, answers: Answers) -> None:
    """Can a thread without a context leave the rules of captures? If not, polling would break the job's captures."""

    def ask() -> dict[str, Any]:
        current = c_void_p()
        driver.call("cuCtxGetCurrent", byref(current))
        first = driver.exchange_capture_mode(CAPTURE_RELAXED)
        again = driver.exchange_capture_mode(CAPTURE_RELAXED)
        return {"context": bool(current.value), "first": first, "again": again}

    answers["thread"] = on_a_bare_thread(ask)


def capture_beside(
    driver: Driver, meanwhile: Callable[[c_void_p, c_void_p, c_void_p], Any], flags: int = 1
) -> dict[str, Any]:
    """Capture two kernels and replay them; `meanwhile(private stream, event, stream)` is called between them."""
    stream, private, event = driver.new_stream(flags), driver.new_stream(1, -1), driver.new_event()
    driver.require("cuEventRecord", event, private)
    driver.require("cuStreamSynchronize", private)
    driver.require("cuStreamBeginCapture_v2", stream, CAPTURE_GLOBAL)
    driver.launch(stream, 1000)
    found = {"meanwhile": meanwhile(private, event, stream), "status": driver.capture_status(stream)}
    driver.launch(stream, 1000)
    found["end"], graph = driver.end_capture(stream)
    if found["end"] == 0:
        nodes = c_size_t()
        driver.call("cuGraphGetNodes", graph, None, byref(nodes))
        executable = driver.instantiate(graph)
        found["nodes"] = nodes.value
        found["replay"] = [driver.call("cuGraphLaunch", executable, stream), driver.call("cuStreamSynchronize", stream)]
    return found


def capture_beside_polling(driver: Driver, answers: Answers) -> None:
    """Does a capture survive what the recorder's thread does during it? `control` does the same within the rules."""
    stamps = driver.new_stamps()

    def poll(private: c_void_p, event: c_void_p, stream: c_void_p) -> dict[str, Any]:
        milliseconds, made, number, before = c_float(), c_void_p(), c_ulonglong(), c_void_p()
        return {
            "push": driver.call("cuCtxPushCurrent_v2", driver.context),
            "query": driver.call("cuEventQuery", event),
            "elapsed": driver.call("cuEventElapsedTime", byref(milliseconds), event, event),
            "create": driver.call("cuEventCreate", byref(made), 0),
            "record": driver.call("cuEventRecord", made, private),
            "stream": driver.call("cuStreamCreateWithPriority", byref(c_void_p()), 1, 0),
            "launch": driver.launch(private, 0, stamps),
            "capturing": driver.capture_status(stream),
            "id": driver.call("cuStreamGetId", stream, byref(number)),
            "pop": driver.call("cuCtxPopCurrent_v2", byref(before)),
        }

    def relaxed(*handles: c_void_p) -> Any:
        driver.exchange_capture_mode(CAPTURE_RELAXED)
        return poll(*handles)

    answers["relaxed"] = capture_beside(driver, lambda *handles: on_a_bare_thread(lambda: relaxed(*handles)))
    answers["control"] = capture_beside(driver, lambda *handles: on_a_bare_thread(lambda: poll(*handles)))


def capture_on_own_thread(driver: Driver, answers: Answers) -> None:
    """What a hook asks on the thread that captures."""
    text = ctypes.create_string_buffer(8)

    def ask(private: c_void_p, event: c_void_p, stream: c_void_p) -> dict[str, Any]:
        context, number = c_void_p(), c_ulonglong()
        found = {
            "current": driver.call("cuCtxGetCurrent", byref(context)),
            "capturing": driver.capture_status(stream),
            "id": driver.call("cuStreamGetId", stream, byref(number)),
        }
        (_, mode) = driver.exchange_capture_mode(CAPTURE_RELAXED)
        found["pointer"] = driver.pointer_kind(ctypes.addressof(text))
        found["create"] = driver.call("cuEventCreate", byref(c_void_p()), 0)
        found["context"] = driver.call("cuStreamGetCtx", stream, byref(context))
        driver.exchange_capture_mode(mode)
        return found

    answers["own_thread"] = capture_beside(driver, ask)


def legacy_stream_beside_capture(driver: Driver, answers: Answers) -> None:
    """What the legacy stream answers while a blocking stream captures."""

    def ask(*handles: c_void_p) -> Any:
        return [driver.capture_status(c_void_p(1)), driver.capture_status(c_void_p())]

    answers["blocking"] = capture_beside(driver, ask, flags=0)


def events_against_globaltimer(driver: Driver, answers: Answers) -> None:
    """Is the time between two events around a kernel the time of the kernel? Microseconds more than that, of 50."""
    stamps, stream = driver.new_stamps(), driver.new_stream()
    for duration_us in (20, 200, 2000):
        extra = []
        for _ in range(50):
            first, second = driver.new_event(), driver.new_event()
            driver.require("cuEventRecord", first, stream)
            driver.launch(stream, duration_us * 1000, stamps)
            driver.require("cuEventRecord", second, stream)
            driver.require("cuStreamSynchronize", stream)
            extra.append(round(driver.elapsed_us(first, second) - stamps.duration_ns() / 1e3, 2))
        extra.sort()
        answers[f"{duration_us} us"] = {"least_us": extra[0], "median_us": extra[len(extra) // 2], "most_us": extra[-1]}


def events_serialise(driver: Driver, answers: Answers) -> None:
    """Milliseconds of short kernels on four streams, with a pair of timing events around each and without."""
    streams = [driver.new_stream() for _ in range(4)]
    found: dict[str, list[float]] = {"without": [], "with": []}
    for events in (False, True, False, True):
        driver.require("cuCtxSynchronize")
        begin_ns = time.perf_counter_ns()
        for _ in range(50):
            for stream in streams:
                if events:
                    driver.require("cuEventRecord", driver.new_event(), stream)
                driver.launch(stream, 100_000)
                if events:
                    driver.require("cuEventRecord", driver.new_event(), stream)
        driver.require("cuCtxSynchronize")
        found["with" if events else "without"].append(round((time.perf_counter_ns() - begin_ns) / 1e6, 2))
    answers["ms"] = found


def events_serialise_one_connection(driver: Driver, answers: Answers) -> None:
    """The same with CUDA_DEVICE_MAX_CONNECTIONS=1."""
    events_serialise(driver, answers)


def events_on_the_legacy_stream(driver: Driver, answers: Answers) -> None:
    """Milliseconds of four kernels on the legacy stream with work of two blocking streams between them.

    `behind`: with a timing event directly behind each launch on the legacy stream, which joins nothing that the launch
    does not. `between`, the control: with one between the two streams' work: the second waits for the first.
    """
    streams = [driver.new_stream(0), driver.new_stream(0)]
    legacy, found = c_void_p(), dict[str, list[float]](without=[], behind=[], between=[])
    for way in ("without", "behind", "between") * 3:
        driver.require("cuCtxSynchronize")
        begin_ns = time.perf_counter_ns()
        for number in range(4):
            driver.launch(legacy, LEGACY_NS)
            if way == "behind":
                driver.require("cuEventRecord", driver.new_event(), legacy)
            for stream in streams if number < 3 else ():
                driver.launch(stream, BLOCKING_NS)
                if way == "between":
                    driver.require("cuEventRecord", driver.new_event(), legacy)
        driver.require("cuCtxSynchronize")
        found[way].append(round((time.perf_counter_ns() - begin_ns) / 1e6, 2))
    answers["ms"] = found


def dead_handles(driver: Driver, answers: Answers) -> None:
    """Answers to handles whose stream was destroyed, and whose primary context was reset; it may crash."""
    milliseconds, flags, number = c_float(), c_uint(), c_int(9)
    stream, event = driver.new_stream(), driver.new_event()
    driver.require("cuEventRecord", event, stream)
    driver.require("cuStreamSynchronize", stream)
    driver.require("cuStreamDestroy_v2", stream)
    elapsed = ("cuEventElapsedTime", byref(milliseconds), event, event)
    answers["stream_gone"] = [driver.call("cuEventQuery", event), driver.call(*elapsed)]
    stream = driver.new_stream()
    answers["reset"] = driver.call("cuDevicePrimaryCtxReset_v2", 0)
    answers["state"] = [driver.call("cuDevicePrimaryCtxGetState", 0, byref(flags), byref(number)), number.value]
    answers["push"] = driver.call("cuCtxPushCurrent_v2", driver.context)
    answers["cuEventQuery"] = driver.call("cuEventQuery", event)
    answers["cuEventElapsedTime"] = driver.call(*elapsed)
    answers["cuStreamIsCapturing"] = driver.capture_status(stream)[0]
    answers["cuStreamGetId"] = driver.call("cuStreamGetId", stream, byref(c_ulonglong()))
    answers["cuEventRecord"] = driver.call("cuEventRecord", event, stream)


def green_context(driver: Driver, answers: Answers) -> None:
    """Whose is a green context's stream, whose events can be recorded on it, and what is left when it is destroyed."""
    resource, groups, rest = (ctypes.create_string_buffer(bytes_count) for bytes_count in (512, 4096, 512))
    count, description, green, stream, context = c_uint(1), c_void_p(), c_void_p(), c_void_p(), c_void_p()
    event, own = driver.new_event(), c_void_p()
    answers["resource"] = driver.call("cuDeviceGetDevResource", 0, resource, 1)
    answers["split"] = driver.call("cuDevSmResourceSplitByCount", groups, byref(count), resource, rest, 0, 16)
    answers["describe"] = driver.call("cuDevResourceGenerateDesc", byref(description), groups, 1)
    answers["create"] = driver.call("cuGreenCtxCreate", byref(green), description, 0, 1)
    if answers["create"]:
        return
    answers["stream"] = driver.call("cuGreenCtxStreamCreate", byref(stream), green, 1, 0)
    code = driver.call("cuStreamGetCtx", stream, byref(context))
    answers["stream_context"] = [code, context.value == driver.context.value]
    answers["record_primary_event"] = driver.call("cuEventRecord", event, stream)
    answers["push"] = driver.call("cuCtxPushCurrent_v2", context)
    codes = [driver.call("cuEventCreate", byref(own), 0), driver.call("cuEventRecord", own, stream)]
    answers["own_event"] = [*codes, driver.call("cuStreamSynchronize", stream), driver.call("cuEventQuery", own)]
    driver.call("cuCtxPopCurrent_v2", byref(c_void_p()))
    answers["destroy"] = driver.call("cuGreenCtxDestroy", green)
    answers["capturing_after"] = driver.capture_status(stream)[0]
    answers["query_after"] = driver.call("cuEventQuery", own)
    answers["push_after"] = driver.call("cuCtxPushCurrent_v2", context)


def uuids(driver: Driver, answers: Answers) -> None:
    """The device's UUID by both forms of the call, which differ for a part of a device (MIG)."""
    for name in ("cuDeviceGetUuid", "cuDeviceGetUuid_v2"):
        uuid = (c_ubyte * 16)()
        answers[name] = [driver.call(name, uuid, 0), bytes(uuid).hex()]


QUESTIONS: tuple[Callable[[Driver, Answers], None], ...] = (
    bare_thread_mode,
    capture_beside_polling,
    capture_on_own_thread,
    legacy_stream_beside_capture,
    events_against_globaltimer,
    events_serialise,
    events_serialise_one_connection,
    events_on_the_legacy_stream,
    dead_handles,
    green_context,
    uuids,
)


def answer(name: str) -> int:
    """Ask one question in this process, and print what is answered; the exit code."""
    (question,) = [one for one in QUESTIONS if one.__name__ == name]
    answers = Answers()
    try:
        question(Driver(), answers)
    except AttributeError as error:  # a driver that does not have the function yet
        answers["missing"] = str(error).rpartition(" ")[2]
    sys.stdout.flush()
    os._exit(0)  # what a question broke shall not be tidied up


def ask_all(script: Path, limit_s: float) -> dict[str, Any]:
    """Ask each question in a separate process; answers by name, as far as there was time."""
    deadline_s = time.monotonic() + limit_s
    found: dict[str, Any] = {}
    for question in QUESTIONS:
        name = question.__name__
        environment = dict(os.environ)
        if question is events_serialise_one_connection:
            environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        left_s = min(QUESTION_LIMIT_S, deadline_s - time.monotonic())
        if left_s <= 0:
            found[name] = {"not_reached": True}
            continue
        command = [sys.executable, str(script), "answer", name]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=left_s, check=False)
            printed, end = (
                done.stdout,
                {"exit": done.returncode, "error": done.stderr[-300:]} if done.returncode else {},
            )
        except subprocess.TimeoutExpired as late:
            printed, end = (late.stdout or b"").decode(errors="replace"), {"no_end_within_s": round(left_s)}
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        found[name] = {**(json.loads(lines[-1]) if lines else {}), **end}
    return found


def problems(answers: dict[str, Any]) -> Iterator[str]:
    """Say which answers contradict what the recorder relies on. A question without its answer is a problem too."""
    for name, found in answers.items():
        if ends := {key: found[key] for key in ("exit", "no_end_within_s", "not_reached") if key in found}:
            yield f"{name}: no full answer ({', '.join(f'{key} {value}' for key, value in ends.items())})"
    thread = answers.get("bare_thread_mode", {}).get("thread")
    if isinstance(thread, dict) and thread["first"] != [0, CAPTURE_GLOBAL]:
        yield f"bare_thread_mode: a thread without a context may not leave the rules of captures: {thread['first']}"
    capture = answers.get("capture_beside_polling", {})
    if capture.get("relaxed", {}).get("end", 0) != 0:
        yield f"capture_beside_polling: polling breaks captures (end {capture['relaxed']['end']})"
    if capture.get("control", {}).get("end", CAPTURE_INVALIDATED) != CAPTURE_INVALIDATED:
        yield f"capture_beside_polling: the control was not refused ({capture['control']['end']}): nothing is proven"
    short = answers.get("events_against_globaltimer", {}).get("20 us")
    if short and not -WIDE_BRACKET_US <= short["median_us"] <= WIDE_BRACKET_US:
        yield f"events_against_globaltimer: events around a kernel of 20 us say {short['median_us']} us more"
    serial = answers.get("events_serialise", {}).get("ms")
    if serial and min(serial["with"]) > SERIAL_RATIO * min(serial["without"]):
        yield f"events_serialise: timing events serialise streams ({serial['with']} ms, without {serial['without']})"
    legacy = answers.get("events_on_the_legacy_stream", {}).get("ms")
    if legacy and min(legacy["behind"]) > SERIAL_RATIO * min(legacy["without"]):
        yield f"events_on_the_legacy_stream: an event behind a launch joins the blocking streams: {legacy} ms"
    if legacy and min(legacy["between"]) <= SERIAL_RATIO * min(legacy["without"]):
        yield f"events_on_the_legacy_stream: the control joins none: {legacy} ms: nothing is proven"
    if answers.get("green_context", {}).get("push_after") == 0:
        yield "green_context: a destroyed context can still be made current: the recorder keeps a dead handle"
