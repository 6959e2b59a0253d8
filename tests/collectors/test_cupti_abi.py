"""Our declarations of CUPTI against NVIDIA's headers, where this machine has them.

``STASHTRACE_CUPTI_INCLUDE`` names further folders with ``cupti_activity.h`` (colon-separated), in addition to those of
the wheels of ``STASHTRACE_WHEELS_PYTHON``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.real_interfaces import cuda_headers, cupti_headers
from traced import ROOT

FOLDERS = cupti_headers()

#: Ours -> (stem of theirs, oldest version of the struct, ((our field, their field), ...)).
STRUCTS: dict[str, tuple[str, int, tuple[tuple[str, str], ...]]] = {
    "ActivityKernel": (
        "Kernel",
        5,
        (
            ("start_ns", "start"),
            ("end_ns", "end"),
            ("completed_ns", "completed"),
            ("device_id", "deviceId"),
            ("context_id", "contextId"),
            ("stream_id", "streamId"),
            ("correlation_id", "correlationId"),
            ("grid_id", "gridId"),
            ("name", "name"),
            ("queued_ns", "queued"),
            ("submitted_ns", "submitted"),
            ("graph_node_id", "graphNodeId"),
        ),
    ),
    "ActivityMemcpy": (
        "Memcpy",
        4,
        (
            ("copy_kind", "copyKind"),
            ("source_kind", "srcKind"),
            ("target_kind", "dstKind"),
            ("flags", "flags"),
            ("bytes", "bytes"),
            ("start_ns", "start"),
            ("end_ns", "end"),
            ("device_id", "deviceId"),
            ("context_id", "contextId"),
            ("stream_id", "streamId"),
            ("correlation_id", "correlationId"),
            ("graph_node_id", "graphNodeId"),
        ),
    ),
    "ActivityMemcpyPeer": (
        "MemcpyPtoP",
        3,
        (
            ("copy_kind", "copyKind"),
            ("bytes", "bytes"),
            ("start_ns", "start"),
            ("end_ns", "end"),
            ("device_id", "deviceId"),
            ("context_id", "contextId"),
            ("stream_id", "streamId"),
            ("source_device_id", "srcDeviceId"),
            ("target_device_id", "dstDeviceId"),
            ("correlation_id", "correlationId"),
            ("graph_node_id", "graphNodeId"),
        ),
    ),
    "ActivityMemset": (
        "Memset",
        3,
        (
            ("value", "value"),
            ("bytes", "bytes"),
            ("start_ns", "start"),
            ("end_ns", "end"),
            ("device_id", "deviceId"),
            ("context_id", "contextId"),
            ("stream_id", "streamId"),
            ("correlation_id", "correlationId"),
            ("graph_node_id", "graphNodeId"),
        ),
    ),
    "ActivitySynchronization": (
        "Synchronization",
        1,
        (
            ("type", "type"),
            ("start_ns", "start"),
            ("end_ns", "end"),
            ("correlation_id", "correlationId"),
            ("context_id", "contextId"),
            ("stream_id", "streamId"),
            ("event_id", "cudaEventId"),
        ),
    ),
    "ActivityGraphTrace": (
        "GraphTrace",
        1,
        (
            ("correlation_id", "correlationId"),
            ("start_ns", "start"),
            ("end_ns", "end"),
            ("device_id", "deviceId"),
            ("graph_id", "graphId"),
            ("context_id", "contextId"),
            ("stream_id", "streamId"),
        ),
    ),
    "ActivityApi": (
        "API",
        1,
        (
            ("callback_id", "cbid"),
            ("start_ns", "start"),
            ("end_ns", "end"),
            ("process_id", "processId"),
            ("thread_id", "threadId"),
            ("correlation_id", "correlationId"),
            ("return_value", "returnValue"),
        ),
    ),
}

NUMBERS = {
    "kSuccess": "CUPTI_SUCCESS",
    "kMaxLimitReached": "CUPTI_ERROR_MAX_LIMIT_REACHED",
    "kNotCompatible": "CUPTI_ERROR_NOT_COMPATIBLE",
    "kNotInitialized": "CUPTI_ERROR_NOT_INITIALIZED",
    "kInsufficientPrivileges": "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
    "kMultipleSubscribers": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
    "kUnknown": "CUPTI_ERROR_UNKNOWN",
    "ActivityKind::memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "ActivityKind::memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "ActivityKind::kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "ActivityKind::driver": "CUPTI_ACTIVITY_KIND_DRIVER",
    "ActivityKind::runtime": "CUPTI_ACTIVITY_KIND_RUNTIME",
    "ActivityKind::concurrent_kernel": "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
    "ActivityKind::memcpy_peer": "CUPTI_ACTIVITY_KIND_MEMCPY2",
    "ActivityKind::synchronization": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "ActivityKind::graph_trace": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CopyKind::host_to_device": "CUPTI_ACTIVITY_MEMCPY_KIND_HTOD",
    "CopyKind::device_to_host": "CUPTI_ACTIVITY_MEMCPY_KIND_DTOH",
    "CopyKind::device_to_device": "CUPTI_ACTIVITY_MEMCPY_KIND_DTOD",
    "CopyKind::host_to_host": "CUPTI_ACTIVITY_MEMCPY_KIND_HTOH",
    "CopyKind::peer": "CUPTI_ACTIVITY_MEMCPY_KIND_PTOP",
    "SynchronizationType::event": "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE",
    "SynchronizationType::stream_wait_event": "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT",
    "SynchronizationType::stream": "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE",
    "SynchronizationType::context": "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE",
    "kFlushForced": "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED",
    "kThreadIdDefault": "CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT",
    "kThreadIdSystem": "CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM",
}


def assertions(headers: str) -> Iterator[str]:
    """One static_assert per number, field and size, for every version of a struct that the headers hold."""
    for ours, theirs in NUMBERS.items():
        yield f"static_assert(static_cast<long>(abi::{ours}) == static_cast<long>({theirs}));"
    for ours, (stem, oldest, fields) in STRUCTS.items():
        found = {int(n or 1) for n in re.findall(rf"}}\s*CUpti_Activity{stem}(\d*)\s*;", headers)}
        versions = sorted(n for n in found if n >= oldest)
        assert versions, f"no CUpti_Activity{stem} in these headers"
        for number in versions:
            name = f"CUpti_Activity{stem}{number if number > 1 else ''}"
            yield f"static_assert(sizeof(abi::{ours}) <= sizeof({name}));"
            for mine, other in fields:
                yield f"static_assert(offsetof(abi::{ours}, {mine}) == offsetof({name}, {other}));"
                yield f"static_assert(sizeof(abi::{ours}::{mine}) == sizeof({name}::{other}));"


@pytest.mark.skipif(not FOLDERS, reason="no cupti_activity.h on this machine")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path).strip("/").replace("/", "-"))
def test_declarations_are_those_of_the_headers(folder: Path, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    cuda = cuda_headers()
    if compiler is None or not cuda:
        pytest.skip("needs a C++ compiler and the headers of a toolkit or of the wheels of CUDA")
    names = ("cupti_activity.h", "cupti_activity_deprecated.h")
    present = [name for name in names if (folder / name).is_file()]
    headers = "".join((folder / name).read_text(encoding="utf-8", errors="replace") for name in present)
    source = tmp_path / "check.cpp"
    lines = [
        "#include <cstddef>",
        "#include <cuda.h>",
        "#include <cupti_result.h>",
        "#include <cupti_callbacks.h>",
        *(f"#include <{name}>" for name in present),
        "#include <cupti_version.h>",
        '#include "abi/cupti_abi.h"',
        "namespace abi = stashtrace::abi::cupti;",
        "static_assert(abi::known_version(CUPTI_API_VERSION));",
        *assertions(headers),
    ]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [
        compiler,
        "-std=c++20",
        "-fsyntax-only",
        "-Wno-invalid-offsetof",
        f"-I{folder}",
        f"-I{cuda[-1]}",
        f"-I{ROOT / 'csrc'}",
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
