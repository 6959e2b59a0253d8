"""Enumerations of the event model.

Those that a recording holds are declared in ``csrc/schema/records.def`` and written here from it: importing them
needs no native code, and type checkers know their members. Those at the end exist in Python alone.
"""

from __future__ import annotations

import enum
from typing import SupportsIndex


class Code(enum.IntEnum):
    """Base of what a file says by number.

    A number that this version does not know is a member too, for that lookup alone: ``IoOp(99).name`` is
    ``UNKNOWN_99``, so a row of a newer version is shown by its number.
    """

    @classmethod
    def _missing_(cls, value: object) -> Code | None:
        if not isinstance(value, SupportsIndex):
            return None
        member = int.__new__(cls, value)
        member._name_, member._value_ = f"UNKNOWN_{int(value)}", int(value)
        return member


# Generated from csrc/schema/records.def by scripts/docs/generate_format.py; do not edit.


class Severity(Code):
    """How bad a loss is."""

    INFO = 0
    ERROR = 1
    DATA_LOSS = 2


class ThreadRole(Code):
    """What a thread is to the job."""

    UNKNOWN = 0
    STEP = 1
    WORKER = 2
    PIN_MEMORY = 3
    TRACER = 4
    BACKEND = 5


class SpanKind(Code):
    """What a span or an instant is."""

    USER = 0
    STEP_MARK = 1
    GC = 2
    PROBE = 3
    LOADER = 4
    STEP = 5
    EXCEPTION = 6
    COMPILE = 7
    COMPILE_REASON = 8
    LIBRARY = 9
    OBJECTS = 10


class IoOp(Code):
    """Which call."""

    READ = 1
    WRITE = 2
    PREAD = 3
    PWRITE = 4
    READV = 5
    WRITEV = 6
    PREADV = 7
    PWRITEV = 8
    OPEN = 9
    CLOSE = 10
    LSEEK = 11
    STAT = 12
    FSYNC = 13
    MMAP = 14
    MUNMAP = 15
    MSYNC = 16
    SENDFILE = 17
    FOPEN = 18
    FCLOSE = 19
    FREAD = 20
    FWRITE = 21
    FSEEK = 22
    FFLUSH = 23
    UNLINK = 24
    RENAME = 25
    MKDIR = 26
    READDIR = 27
    TRUNCATE = 28
    RECV = 29
    SEND = 30
    CONNECT = 31
    FADVISE = 32
    CONNECT_ERROR = 33


class IoFlag(enum.IntFlag):
    """Bits of io_flags."""

    SAMPLED = 1
    BLOCKED = 2
    BLOCK_INPUT = 4
    STDIO = 8
    SOCKET = 16
    PIPE = 32
    NETWORK_FS = 64
    DIRECT = 128
    STAGED = 256


class WaitOp(Code):
    """Which blocking call."""

    COND_WAIT = 1
    MUTEX_LOCK = 2
    FUTEX = 3
    SEMAPHORE = 4
    POLL = 5
    SLEEP = 6
    JOIN = 7
    GIL = 8


class StackCause(Code):
    """Why a stack was kept with its begin and end."""

    WAIT = 1
    IO = 2
    PHASE = 3
    BATCH = 4
    GARBAGE = 5
    COLLECTIVE = 6
    AWAITED = 7


class StackFlag(enum.IntFlag):
    """Bits of sample_flags."""

    HOLDS_GIL = 1
    INNER_TORN = 2
    OUTER_CUT = 4
    AROUND = 8
    BLOCKED = 16


class BatchPhase(Code):
    """A phase in the life of a batch."""

    WAIT = 1
    FETCH = 2
    COLLATE = 3
    PUT = 4
    INDEX_WAIT = 5
    RECEIVE = 6
    PIN = 7
    SERIALIZE = 8
    WORKERS_END = 9


class Phase(Code):
    """A phase of a training step."""

    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    UPDATE_SKIPPED = 4
    CHECKPOINT = 5
    CHECKPOINT_LOAD = 6


class PhaseFlag(enum.IntFlag):
    """Bits of phase_flags."""

    NO_GRAD = 1
    TRAINING = 2
    NESTED = 4
    FAILED = 8
    BACKGROUND = 16


class CollectiveOp(Code):
    """Which collective."""

    OTHER = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    BARRIER = 9
    SEND = 10
    RECEIVE = 11


class CollectiveFlag(enum.IntFlag):
    """Bits of collective_flags."""

    FUNCTIONAL = 1
    COALESCED = 2
    ASYNC_OP = 4
    INFERENCE = 8
    IN_BACKWARD = 16


class ElementType(Code):
    """What the elements of a tensor are."""

    UNKNOWN = 0
    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    UINT8 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    BOOL8 = 10
    COMPLEX64 = 11
    COMPLEX128 = 12
    FLOAT8_E4M3FN = 13
    FLOAT8_E5M2 = 14
    FLOAT8_E4M3FNUZ = 15
    FLOAT8_E5M2FNUZ = 16


class DeviceClock(Code):
    """A clock of a device."""

    EVENT = 1
    GLOBALTIMER = 2
    CUPTI = 3


class StreamFlag(enum.IntFlag):
    """Bits of stream_flags."""

    LEGACY = 1
    PER_THREAD = 2
    NON_BLOCKING = 4
    CARRIES_COMPUTE = 8


class Bracket(Code):
    """What two timing events stand around."""

    BATCH_WAIT = 1
    STREAM_WAIT = 2
    COLLECTIVE = 3
    COPY = 4
    STEP = 5
    GRAPH = 6
    MARK = 7
    AWAITED = 8
    HOST_FUNCTION = 9


class Awaited(Code):
    """The last work on the awaited stream when its event was recorded."""

    NOTHING = 0
    COPY = 1
    COLLECTIVE = 2
    COMPUTE = 3
    GRAPH = 4
    HOST_FUNCTION = 5


class BracketFlag(enum.IntFlag):
    """Bits of bracket_flags."""

    UNTIMED = 1
    CAPTURED = 2
    PINNED = 4
    PAGEABLE = 8
    FAILED = 16
    GROUPED = 32
    LATE_LAUNCH = 64
    BEHIND_WORK = 128


class CopyDirection(Code):
    """Where a copy goes."""

    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    PEER = 4
    HOST_TO_HOST = 5
    UNKNOWN = 6


class DeviceCall(Code):
    """Which call of the driver or runtime."""

    STREAM_SYNCHRONIZE = 1
    DEVICE_SYNCHRONIZE = 2
    EVENT_SYNCHRONIZE = 3
    COPY = 4
    ALLOCATE = 5
    FREE = 6
    ALLOCATE_HOST = 7
    LAUNCH = 8
    GRAPH_LAUNCH = 9
    MODULE_LOAD = 10
    ALLOCATE_RETRY = 11
    MAP_MEMORY = 12
    UNMAP_MEMORY = 13


class DeviceWork(Code):
    """What ran on a device."""

    KERNEL = 1
    COPY = 2
    MEMSET = 3
    COMMUNICATION = 4
    GRAPH = 5
    SYNCHRONIZATION = 6


class CommEvent(Code):
    """What happened to a communicator."""

    INIT = 1
    SPLIT = 2
    SHRINK = 3
    GROW = 4
    FINALIZE = 5
    DESTROY = 6
    ABORT = 7
    PLUGIN_INIT = 8
    REVOKE = 9


class CollectiveSource(Code):
    """Who saw a collective."""

    HOST = 0
    EVENTS = 1
    PLUGIN = 2
    IMPORTED = 3


class NcclFlag(enum.IntFlag):
    """Bits of nccl_flags."""

    GROUPED = 1
    CAPTURED = 2
    FAILED = 4
    NON_BLOCKING = 8
    REPLAYED = 16
    ATTACHED = 32
    COPY_ENGINE = 64
    SYMMETRIC = 128


# End of what is generated.


#: Operations in which nobody can end before everybody has entered.
SYNCHRONISING_OPS = (
    CollectiveOp.ALL_REDUCE,
    CollectiveOp.ALL_GATHER,
    CollectiveOp.REDUCE_SCATTER,
    CollectiveOp.ALL_TO_ALL,
    CollectiveOp.BARRIER,
)
#: Operations between two ranks.
MESSAGES = (CollectiveOp.SEND, CollectiveOp.RECEIVE)
#: Operations in which the root feeds the others, and those in which it waits for them.
FROM_ROOT, TO_ROOT = (CollectiveOp.BROADCAST, CollectiveOp.SCATTER), (CollectiveOp.REDUCE, CollectiveOp.GATHER)
#: ``collectives.status_code``: it failed, its end was seen late, or was not seen.
FAILED_STATUS, LATE_STATUS, UNSEEN_STATUS = 1, 2, 3


#: Calls that open a file, that read from one, and that write to one.
OPENS = (IoOp.OPEN, IoOp.FOPEN)
READS = (IoOp.READ, IoOp.PREAD, IoOp.READV, IoOp.PREADV, IoOp.FREAD, IoOp.SENDFILE)
WRITES = (IoOp.WRITE, IoOp.PWRITE, IoOp.WRITEV, IoOp.PWRITEV, IoOp.FWRITE)
#: Flags of calls in which the thread was off the CPU for storage, and of those that are on no file.
IO_WAITED, NOT_FILES = int(IoFlag.BLOCKED | IoFlag.BLOCK_INPUT), int(IoFlag.SOCKET | IoFlag.PIPE)


#: ``worker_id`` of a batch that the step thread made itself, and of one whose worker is not in the recording.
MAIN_PROCESS, UNSEEN_WORKER = -1, -2


#: Work that computes. Graphs with only a known begin and end count as that.
COMPUTING_WORK = (DeviceWork.KERNEL, DeviceWork.GRAPH)
#: Flags of brackets that have no usable pair of events on a device.
UNUSABLE_BRACKET = int(BracketFlag.UNTIMED | BracketFlag.CAPTURED | BracketFlag.FAILED)


#: Calls that return when the device has done what was asked of it before, or a part of that.
SYNCHRONISING_CALLS = (
    DeviceCall.STREAM_SYNCHRONIZE,
    DeviceCall.DEVICE_SYNCHRONIZE,
    DeviceCall.EVENT_SYNCHRONIZE,
    DeviceCall.COPY,
)


#: Calls that can leave the device without work: it ran dry while the host stood in one.
BLOCKING_CALLS = (
    *SYNCHRONISING_CALLS,
    DeviceCall.ALLOCATE,
    DeviceCall.FREE,
    DeviceCall.ALLOCATE_HOST,
    DeviceCall.MODULE_LOAD,
    DeviceCall.ALLOCATE_RETRY,
    DeviceCall.MAP_MEMORY,
    DeviceCall.UNMAP_MEMORY,
)


#: Spans whose name says what a thread did: annotations of the script, compilations, timed calls of libraries.
NAMED_SPANS = (SpanKind.USER, SpanKind.COMPILE, SpanKind.LIBRARY, SpanKind.OBJECTS)
#: Name of the annotations that an importer makes of the stretches in which a thread ran operators.
OPERATORS = "operators"


class StallKind(Code):
    """Where a nanosecond of a step went.

    The numbers are codes, not an order. Where causes overlap, the first layer of the rank's method wins:
    ``docs/concepts/stalls.md`` has the table; ``device_layers`` and ``on_host`` have the layers.
    """

    COMPUTE = 1
    STRAGGLER = 2
    NETWORK = 3
    INTERCONNECT = 4
    H2D = 5
    FETCH = 6
    PREP = 7
    HANDOFF = 8
    CHECKPOINT = 9
    SYNC = 10
    LAUNCH = 11
    PYTHON = 12
    OTHER = 13


#: Time of a link; time in which a rank is in a collective; time in which it waits for a batch.
LINK_KINDS = (StallKind.NETWORK, StallKind.INTERCONNECT)
IN_COLLECTIVES = (StallKind.STRAGGLER, *LINK_KINDS)
LOADING_KINDS = (StallKind.FETCH, StallKind.PREP, StallKind.HANDOFF)


class TrackKind(Code):
    """What a track of the timeline shows."""

    THREAD = 1
    COMMUNICATOR = 2
    STREAM = 3
    DEVICE = 4
    COUNTER = 5


class ProcessRole(Code):
    """What a process is to the job."""

    OTHER = 0
    RANK = 1
    WORKER = 2
    LAUNCHER = 3


class FlowKind(Code):
    """What an arrow of the timeline joins."""

    BATCH = 1
    COLLECTIVE = 2
    LAUNCH = 3
