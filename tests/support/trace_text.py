"""trace_from_text(): a Trace from a drawn timeline, for tests. Import it through `builders`."""

from __future__ import annotations

from collections.abc import Iterable

from trace_rows import MS, WORLD, ProcessBuilder, TraceBuilder

from stashtrace.schema.kinds import BatchPhase, CollectiveOp, IoFlag, IoOp, PhaseFlag, WaitOp
from stashtrace.schema.trace import Trace

Runs = list[tuple[str, int, int]]

_PHASES = {
    "F": "forward",
    "B": "backward",
    "O": "optimizer",
    "S": "update_skipped",
    "C": "checkpoint",
    "L": "checkpoint_load",
    "V": "forward",
}
_WAITS = {
    "c": WaitOp.COND_WAIT,
    "m": WaitOp.MUTEX_LOCK,
    "f": WaitOp.FUTEX,
    "e": WaitOp.SEMAPHORE,
    "p": WaitOp.POLL,
    "s": WaitOp.SLEEP,
    "j": WaitOp.JOIN,
    "g": WaitOp.GIL,
}
_IO = {
    "b": (IoOp.READ, IoFlag.SAMPLED | IoFlag.BLOCKED),
    "i": (IoOp.READ, IoFlag.SAMPLED | IoFlag.BLOCK_INPUT),
    "c": (IoOp.READ, IoFlag(0)),
    "r": (IoOp.RECV, IoFlag.SOCKET),
    "w": (IoOp.WRITE, IoFlag.SAMPLED | IoFlag.BLOCKED),
    "q": (IoOp.READ, IoFlag.SAMPLED | IoFlag.BLOCKED | IoFlag.PIPE),
}
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def trace_from_text(text: str, *, unit_ns: int = MS, hosts: Iterable[str] = ("node00",)) -> Trace:
    """Trace from a drawing: one line per thing, ``name : characters``, one character per ``unit_ns``.

    A run of equal characters is one interval; ``.`` and blanks are nothing; ``|`` takes no time, it cuts a run in two.
    Lines of one name may be repeated (intervals that overlap). Lines start with ``rank R``; what follows is

    ======================= ==================================================================================
    ``phase``               F forward, V forward under no_grad, B backward, O optimizer, S skipped update,
                            C checkpoint, L checkpoint load
    ``cpu``                 x = the step thread runs, q = runnable but not running, anything else = blocked.
                            With this line the phases carry thread CPU and run-queue time; without it -1
    ``loader``              digit (0-9, a-z) = index of the batch the main process waits for
    ``receive``             digit = batch that is taken from the queue
    ``fetch``               digit = batch made in the main process (num_workers=0)
    ``wait``                blocking calls: c cond, m mutex, f futex, e semaphore, p poll, s sleep, j join, g GIL
    ``coll``                digit = sequence number, run = from the call to the end; ``>`` after it: never ends.
                            Options: op=broadcast, root=0, group=7, bytes=4096, as in ``rank 0 coll op=barrier :``
    ``block``               digit = sequence number of the collective that Work.wait blocks on (group= as above)
    ``io``                  b blocked read, i read that counted block input, c cached read, r recv, w blocked write,
                            q blocked read of a pipe. Options: ``path=/data/x``, ``bytes=4096`` of each call
    ``user``, ``gc``        any character = inside an annotation (named by the character), a collection
    ``mark``                any character = stashtrace.step() at the begin of that unit
    ``life``                any character = the process is alive (default: from its first to its last row)
    ``background``          C = checkpoint written by another thread
    ``worker W``            digit = batch that worker W makes; batches say who made them by these lines,
                            otherwise index modulo the number of workers drawn
    ``worker W io``         as io; ``worker W thread io`` on another thread of the worker
    ``worker W wait``       as wait
    ======================= ==================================================================================
    """
    lines = []
    for line in text.splitlines():
        if line.strip() and not line.strip().startswith("#"):
            head, _, drawing = line.partition(":")
            words = head.split()
            options = dict(w.split("=", 1) for w in words if "=" in w)
            lines.append(
                (int(words[1]), [w for w in words[2:] if "=" not in w], options, _runs(drawing.strip(), unit_ns))
            )
    build = TraceBuilder(hosts)
    for rank in sorted({r for r, _, _, _ in lines}):
        build.rank(rank)
        _draw_rank(build.rank(rank), [(words, options, runs) for r, words, options, runs in lines if r == rank])
    _draw_collectives(build, lines)
    return build.trace()


def _runs(drawing: str, unit_ns: int) -> Runs:
    runs: Runs = []
    position, cut = 0, False
    for character in drawing:
        if character == "|":
            cut = True
            continue
        begin = position * unit_ns
        if runs and not cut and runs[-1][0] == character and runs[-1][2] == begin:
            runs[-1] = (character, runs[-1][1], begin + unit_ns)
        elif character not in ". ":
            runs.append((character, begin, begin + unit_ns))
        position, cut = position + 1, False
    return runs


def _inside(runs: Runs, character: str, until_ns: int) -> int:
    return sum(min(e, until_ns) - b for c, b, e in runs if c == character and b < until_ns)


def _draw_rank(rank: ProcessBuilder, lines: list[tuple[list[str], dict[str, str], Runs]]) -> None:
    cpu = next((runs for words, _, runs in lines if words == ["cpu"]), None)
    makers = {
        c: int(words[1]) for words, _, runs in lines if words[0] == "worker" and len(words) == 2 for c, _, _ in runs
    }
    workers = len({words[1] for words, _, _ in lines if words[0] == "worker"})
    background: ProcessBuilder | None = None
    threads: dict[str, ProcessBuilder] = {}
    for words, options, runs in lines:
        target = rank
        what = words[0]
        loader = int(options.get("loader", 1))
        if what == "worker":
            target, what = rank.worker(int(words[1])), words[-1] if len(words) > 2 else "fetch"
            if "thread" in words:
                target = threads.setdefault(words[1], target.thread("reader"))
        for character, begin, end in runs:
            if what == "phase":
                stamps = {}
                if cpu is not None:
                    stamps = {
                        "cpu": (_inside(cpu, "x", begin), _inside(cpu, "x", end)),
                        "runqueue": (_inside(cpu, "q", begin), _inside(cpu, "q", end)),
                    }
                flags = PhaseFlag.NO_GRAD if character == "V" else PhaseFlag.TRAINING
                target.phase(_PHASES[character], begin, end, flags=flags, **stamps)
            elif what in ("loader", "receive"):
                index = _DIGITS.index(character)
                worker = makers.get(character, index % workers if workers else -1)
                stamps = (
                    {}
                    if cpu is None
                    else {
                        "cpu": _inside(cpu, "x", end) - _inside(cpu, "x", begin),
                        "runqueue": _inside(cpu, "q", end) - _inside(cpu, "q", begin),
                    }
                )
                kind = BatchPhase.WAIT if what == "loader" else BatchPhase.RECEIVE
                target.batch(kind, index, begin, end, worker=worker, loader=loader, **stamps)
            elif what == "fetch":
                target.fetch(_DIGITS.index(character), begin, end, loader=loader)
            elif what == "wait":
                target.wait(_WAITS[character], begin, end)
            elif what == "io":
                op, bits = _IO[character]
                target.io(
                    begin,
                    end,
                    op=op,
                    flags=bits,
                    path=options.get("path", "/data/file"),
                    result_bytes=int(options.get("bytes", 4096)),
                )
            elif what == "user":
                target.annotate(character, begin, end)
            elif what == "gc":
                target.gc(begin, end)
            elif what == "mark":
                target.step_mark(begin)
            elif what == "life":
                target.lives(begin, end)
            elif what == "background":
                background = background or rank.thread("writer")
                background.phase("checkpoint", begin, end, flags=PhaseFlag.BACKGROUND)
            elif what not in ("cpu", "coll", "block"):
                raise ValueError(f"unknown line {' '.join(words)!r}")


def _draw_collectives(build: TraceBuilder, lines: list[tuple[int, list[str], dict[str, str], Runs]]) -> None:
    found: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    about: dict[tuple[int, int], dict[str, str]] = {}
    for rank, words, options, runs in lines:
        if words != ["coll"]:
            continue
        group = int(options.get("group", WORLD))
        for position, (character, begin, end) in enumerate(runs):
            if character == ">":
                continue
            endless = position + 1 < len(runs) and runs[position + 1][0] == ">"
            key = (group, _DIGITS.index(character))
            found.setdefault(key, {})[rank] = (begin, -1 if endless else end)
            about.setdefault(key, {}).update(options)
    keys: dict[tuple[int, int, int], int] = {}
    ranks = sorted(build.ranks)
    for group in sorted({g for g, _ in found}):
        members = (
            ranks if group == WORLD else sorted({r for (g, _), times in found.items() if g == group for r in times})
        )
        build.group(members, group=group, name="default_pg" if group == WORLD else f"group {group}")
    for (group, sequence), times in sorted(found.items()):
        options = about[group, sequence]
        made = build.collective(
            times,
            op=CollectiveOp[options.get("op", "all_reduce").upper()],
            group=group,
            sequence=sequence,
            message_bytes=int(options.get("bytes", 1 << 20)),
            peer_rank=int(options.get("root", -1)),
        )
        keys.update({(group, sequence, rank): key for rank, key in made.items()})
    for rank, words, options, runs in lines:
        if words == ["block"]:
            group = int(options.get("group", WORLD))
            for character, begin, end in runs:
                build.rank(rank).collective_wait(keys.get((group, _DIGITS.index(character), rank), -1), begin, end)
