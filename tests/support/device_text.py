"""Work on devices drawn as text -> Trace, for tests of analyses over kernels. One character is a microsecond.

    trace = device_trace('''
        rank 0 host    : A..B....ssss.C
        rank 0 loader  : ...............000
        rank 0 stream a: ..AAA.BBB........CC
        rank 0 stream b: ...nnnn..c
        rank 0 step    : |.........|........|
    ''')

Streams: a run of one letter is one piece of work; capitals are kernels of that name, ``n`` and ``o`` communication,
``c`` a copy from the host, ``d`` one to the host, ``m`` a fill, ``g`` a graph, ``x`` a marker of synchronisation.
Host: the run of the same letter is the launching call of that piece, ``s`` a blocking call. Pieces without one are
orphans. Loader: digits are waits for batches. Step: bars on the host; what is between two of them is a step.
"""

from __future__ import annotations

import itertools
import re

from builders import US, TraceBuilder

from stashtrace.schema.kinds import CopyDirection, DeviceCall, DeviceWork
from stashtrace.schema.trace import Trace

_WORK = {
    "n": DeviceWork.COMMUNICATION,
    "o": DeviceWork.COMMUNICATION,
    "c": DeviceWork.COPY,
    "d": DeviceWork.COPY,
    "m": DeviceWork.MEMSET,
    "g": DeviceWork.GRAPH,
    "x": DeviceWork.SYNCHRONIZATION,
}
_COPIES = {
    "c": (CopyDirection.HOST_TO_DEVICE, "Memcpy HtoD (Pinned -> Device)"),
    "d": (CopyDirection.DEVICE_TO_HOST, "Memcpy DtoH (Device -> Pageable)"),
}
_LINE = re.compile(r"rank (\d+)(?: gpu (\d+))? (host|loader|step|stream)(?: (\w+))?\s*: ?(.*)")


def runs(row: str) -> list[tuple[str, int, int]]:
    """(letter, begin, end) of each run of one letter, in ns."""
    return [(m[0][0], m.start() * US, m.end() * US) for m in re.finditer(r"([^.\s])\1*", row)]


def device_trace(text: str, *, size_bytes: int = 1 << 20) -> Trace:
    build = TraceBuilder()
    lines = [_LINE.fullmatch(line.strip()) for line in text.strip().splitlines()]
    launches: dict[tuple[int, str], tuple[int, int]] = {}
    for line in lines:
        assert line, text
        rank = int(line[1])
        if line[3] == "host":
            for letter, begin, end in runs(line[5]):
                if letter == "s":
                    build.rank(rank).gpu(0).call(DeviceCall.DEVICE_SYNCHRONIZE, begin, end)
                else:
                    launches[rank, letter] = begin, end
    for line in lines:
        assert line
        number, kind, row = int(line[1]), line[3], line[5]
        rank = build.rank(number)
        if kind == "loader":
            for letter, begin, end in runs(row):
                rank.batch_wait(int(letter), begin, end, worker=0)
        elif kind == "step":
            bars = [begin for _, begin, _ in runs(row)]
            for begin, end in itertools.pairwise(bars):
                rank.phase("forward", begin, end - US // 2).phase("optimizer", end - US // 2, end)
        elif kind == "stream":
            stream = rank.gpu(int(line[2] or 0)).stream(f"stream {line[4]}")
            for letter, begin, end in runs(row):
                direction, name = _COPIES.get(letter, (0, letter))
                stream.kernel(
                    begin,
                    end,
                    name,
                    work=_WORK.get(letter, DeviceWork.KERNEL),
                    launch=launches.get((number, letter)),
                    copy=int(direction),
                    size_bytes=size_bytes if direction else 0,
                )
    return build.trace()
