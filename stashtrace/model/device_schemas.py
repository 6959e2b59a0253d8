"""The tables of devices; ``schemas`` adds them to the others.

Device times are mapped to the run's common clock; what that mapping is worth stands in ``device_clocks``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.model.columns import INTERVAL, schema

DEVICES = schema(
    "devices",
    "One row per process and device that it uses",
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if none"),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    ("track_id", "i8", "", "tracks.track_id of the device"),
    ("uuid_code", "i8", "", "string: the same device has the same in every process"),
    ("name_code", "i8", "", "string: product"),
    ("bus_code", "i8", "", "string: PCI address"),
    ("memory_bytes", "i8", "bytes", "total, -1 if unknown"),
    ("multiprocessors_count", "i8", "", "-1 if unknown"),
    ("capability_code", "i8", "", "10 * major + minor"),
    ("driver_code", "i8", "", "as cuDriverGetVersion"),
)
STREAMS = schema(
    "streams",
    "Streams that were seen",
    ("track_id", "i8", "", "tracks.track_id of the stream"),
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if none"),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    ("stream_flags", "i8", "", "StreamFlag bits"),
    ("priority_index", "i8", "", "as CUDA says it"),
)
DEVICE_CLOCKS = schema(
    "device_clocks",
    "How well each clock of a device is known",
    ("process_id", "i8", "", "processes.process_id whose anchors these are"),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    ("clock_code", "i8", "", "DeviceClock"),
    ("anchors_count", "i8", "", "readings used"),
    ("error_ns", "i8", "ns", "largest half-width of the readings used, and what interpolation adds"),
    ("drift_ppb", "i8", "ppb", "rate against the host, 1e-9"),
)
DEVICE_BRACKETS = schema(
    "device_brackets",
    "Two timing events around something on a stream, and the host's side of it",
    ("bracket_id", "i8", "", "unique in the process"),
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if none"),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    ("track_id", "i8", "", "tracks.track_id of the stream"),
    ("thread_track_id", "i8", "", "tracks.track_id of the thread that called"),
    ("begin_ns", "i8", "ns", "first event, -1 if untimed"),
    ("end_ns", "i8", "ns", "second event, -1 if untimed"),
    ("awaited_ns", "i8", "ns", "stream_wait: end of the awaited work, -1 if not timed"),
    ("call_ns", "i8", "ns", "host: first event recorded, or call entered"),
    ("return_ns", "i8", "ns", "host: call left, or second event recorded"),
    ("bracket_code", "i8", "", "Bracket"),
    ("awaited_code", "i8", "", "Awaited"),
    ("bracket_flags", "i8", "", "BracketFlag bits"),
    ("copy_code", "i8", "", "CopyDirection of the copy, or of the one that a stream_wait was for; 0 if none"),
    ("size_bytes", "i8", "bytes", "copy: bytes"),
    ("correlation_id", "i8", "", "batch index, step, call_id, awaited bracket_id; see the record"),
)
DEVICE_CALLS = schema(
    "device_calls",
    "Blocking and allocating calls of the driver or runtime, on the host",
    *INTERVAL,
    ("track_id", "i8", "", "tracks.track_id of the thread"),
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if none"),
    ("stream_track_id", "i8", "", "tracks.track_id of the stream, -1 if none"),
    ("device_index", "i8", "", "-1 if unknown"),
    ("call_code", "i8", "", "DeviceCall"),
    ("status_code", "i8", "", "result, 0 fine"),
    ("size_bytes", "i8", "bytes", "allocation or copy"),
    ("name_code", "i8", "", "string: name of the function, as hipFree; empty if only its DeviceCall is known"),
)
KERNELS = schema(
    "kernels",
    "Everything that ran on a device, in deep mode or imported",
    *INTERVAL,
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if none"),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    ("track_id", "i8", "", "tracks.track_id of the stream"),
    ("thread_track_id", "i8", "", "tracks.track_id of the launching thread, -1 if unknown"),
    ("launch_ns", "i8", "ns", "host: launching call entered, -1 if unknown"),
    ("return_ns", "i8", "ns", "host: it returned, -1 if unknown"),
    ("name_code", "i8", "", "string: kernel, or kind of copy"),
    ("work_code", "i8", "", "DeviceWork"),
    ("copy_code", "i8", "", "CopyDirection, 0 if no copy"),
    ("size_bytes", "i8", "bytes", "copy or memset"),
    ("correlation_id", "i8", "", "joins launch and work"),
    ("graph_key", "i8", "", "graph node, 0 if not from a graph"),
)
COLLECTIVE_DETAILS = schema(
    "collective_details",
    "What NCCL's profiler plugin or its arguments tell of a collective beyond its times",
    ("collective_key", "i8", "", "collectives.collective_key"),
    ("process_id", "i8", "", "processes.process_id"),
    ("algorithm_code", "i8", "", "string: RING, TREE, NVLS, ...; empty if unknown"),
    ("protocol_code", "i8", "", "string: LL, LL128, SIMPLE; empty if unknown"),
    ("channels_count", "i8", "", "channels used, 0 if unknown"),
    ("timed_count", "i8", "", "of these, with both device stamps"),
    ("nccl_flags", "i8", "", "NcclFlag bits"),
    ("batch_key", "i8", "", "equal for the operations of one group of this process, 0 if alone"),
    ("network_ns", "i8", "ns", "a send or receive of it was in flight, -1 if no proxy was seen"),
    ("transfer_bytes", "i8", "bytes", "moved by its proxies, -1 if none was seen"),
    ("gpu_wait_ns", "i8", "ns", "its proxies waited for the device, steps added, -1 if none was seen"),
    ("peer_wait_ns", "i8", "ns", "for the peer"),
    ("wire_wait_ns", "i8", "ns", "for the network"),
    ("channel_skew_ns", "i8", "ns", "from the first channel's begin to the last one's, -1 if less than two are timed"),
    ("channel_spread_ns", "i8", "ns", "from the first channel's end to the last one's, -1 if less than two are timed"),
)

#: Part of ``schemas.TABLES``.
DEVICE_TABLES = (DEVICES, STREAMS, DEVICE_CLOCKS, DEVICE_BRACKETS, DEVICE_CALLS, KERNELS, COLLECTIVE_DETAILS)
