"""What is known of a run now, and the log of what happened to it.

The state is one small JSON file for each host in the run directory, replaced in each round. ``stashtrace live`` and
the metrics read it, so that neither reads the records a second time. The log has one JSON object a line, and a line of
text for people. Only some lines a minute are written of one kind of event; one line says how many more there were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from stashtrace.errors import FormatError
from stashtrace.files.run_facts import json_object
from stashtrace.files.whole_files import read_text, read_whole, write_whole
from stashtrace.live import times
from stashtrace.live.table import open_own
from stashtrace.record.launchers import own_place
from stashtrace.text.prose import count_noun
from stashtrace.text.visible import visible_line

if TYPE_CHECKING:
    from stashtrace.live.table import LiveTotals

_NAME = "live-{host}.json"
_FORMAT = 1
_JOB_VARIABLES = ("SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID", "LSB_JOBID")
#: As manifests of Kubernetes name what they take from the downward API.
_POD_VARIABLES = ("POD_NAME", "MY_POD_NAME", "K8S_POD_NAME")
#: Events in the state; all of them are in the log.
EVENTS_KEPT = 20


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: a slow step, a stuck job, a lost rank."""

    #: ``slow_step``, ``stall_grows``, ``stuck``, ``moves_again``, ``waits``, ``rank_lost``, ``capture``,
    #: ``on_trigger``, ``metrics``, ``deeper`` or ``directory_gone``.
    kind: str
    #: A sentence.
    text: str
    realtime_ns: int
    #: -1 where it is of no single step or rank.
    step: int = -1
    rank: int = -1
    #: Time that it costs, 0 if unknown.
    cost_ns: int = 0
    #: Path of the window with its evidence, empty if there is none; the event ``capture`` says when it was sealed.
    window: str = ""
    #: Names of the requests that it answers.
    request: str = ""


@dataclass(frozen=True, slots=True)
class LineNow:
    """A line of the user's code in which the newest steps spend much."""

    #: ``most``: more than in any other line; ``late``: longer than on the other ranks, which wait for it.
    why: str
    #: -1: all ranks of the host together.
    rank: int
    #: ``step``; ``worker``: in the processes that make its batches.
    where: str
    #: Kind of time that most of it is.
    kind: str
    #: Function, file and line.
    place: str
    #: Mean of a step, or of a batch of a worker, with bounds of 95 % confidence; of ``late`` only what it is longer.
    time_ns: int
    low_ns: int
    high_ns: int


#: What ``LineNow.why`` may be.
MOST, LATE = "most", "late"


@dataclass(slots=True)
class LiveState:
    """What is known of the part of a run that one host sees."""

    host: str
    run_id: str = ""
    command: list[str] = field(default_factory=list)
    #: CLOCK_REALTIME at the begin of the run, and when this state was made.
    begin_realtime_ns: int = 0
    updated_realtime_ns: int = 0
    #: Seconds between two rounds, and the CPU time of all so far.
    interval_s: float = 0.0
    own_cpu_ns: int = 0
    #: CPU time of the recorder's threads in the job.
    recorder_cpu_ns: int = 0
    rounds_count: int = 0
    #: Whether the job has ended.
    ended: bool = False
    #: Process that makes the rounds, and the boot and pid namespace in which it has that number; empty where unknown.
    follower_pid: int = 0
    follower_place: str = ""
    #: Start of an elastic job.
    start: int = 0
    #: Rank -> numbers as ``RankTotals`` has them, and the realtime of its last step's end.
    ranks: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Sentences of the summary about the newest steps, worst first.
    verdicts: list[str] = field(default_factory=list)
    #: The user's lines that cost most in these steps; none where no stacks are recorded.
    lines: list[LineNow] = field(default_factory=list)
    #: The sentence about a job that is stuck, and the ranks that it waits for; empty while it moves.
    stuck: str = ""
    stuck_ranks: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    lost_records_count: int = 0
    #: What the site calls the job, the pod that it runs in, and the GPU of each rank; empty where unknown.
    job: str = ""
    pod: str = ""
    gpus: dict[str, str] = field(default_factory=dict)
    #: What this host cannot know, and why rows are missing.
    notes: list[str] = field(default_factory=list)

    def take_totals(self, totals: LiveTotals, realtime_of_zero_ns: int) -> None:
        """Take over the sums of each rank; the common clock's zero is at ``realtime_of_zero_ns``."""
        self.ranks = {}
        for rank, of_rank in sorted(totals.ranks.items()):
            facts = dataclasses.asdict(of_rank)
            newest, _ = facts.pop("newest"), facts.pop("lengths_ns")
            facts["newest_count"] = len(newest)
            facts["newest_ns"] = sum(length for length, _ in newest)
            earlier = of_rank.earlier_ns()
            facts["earlier_count"], facts["earlier_ns"] = len(earlier), sum(earlier)
            facts["newest_stall_ns"] = {kind: sum(spent[kind] for _, spent in newest) for kind in of_rank.stall_ns}
            facts["last_end_realtime_ns"] = of_rank.last_end_ns + realtime_of_zero_ns if of_rank.last_end_ns >= 0 else 0
            self.ranks[str(rank)] = facts

    def follower_lives(self) -> bool | None:
        """Return whether its follower is there; None where that cannot be seen, as on other hosts."""
        if not self.follower_place or self.follower_place != own_place():
            return None
        return os.path.exists(f"/proc/{self.follower_pid}")

    def write(self, directory: str | os.PathLike[str]) -> None:
        """Replace the file of this host in one step; errors of the system are raised as they are."""
        text = json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, separators=(",", ":"))
        write_whole(Path(directory) / _NAME.format(host=self.host), text)


def read_states(directory: str | os.PathLike[str]) -> list[LiveState]:
    """Return the state of each host of a run; none if nobody follows it.

    Raises FormatError if a file is damaged or from a newer stashtrace.
    """
    return [_read(path) for path in sorted(Path(directory).glob(_NAME.format(host="*")))]


def _read(path: Path) -> LiveState:
    try:
        facts = json_object(read_whole(path))
        if facts.pop("format") > _FORMAT:
            raise FormatError(
                f"{path} is from a newer stashtrace", hint="show it with the stashtrace that follows the run"
            )
        known = {one.name for one in dataclasses.fields(LiveState)}
        events = [Event(**event) for event in facts.pop("events", [])]
        lines = [LineNow(**line) for line in facts.pop("lines", [])]
        facts = {name: value for name, value in facts.items() if name in known}
        return LiveState(**facts, lines=lines, events=events)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path} is damaged: {error}") from error


def job_of(environment: Mapping[str, str], facts: Mapping[str, Any]) -> str:
    """Return the job by its scheduler's id, else by the name that the run was given, else by its run id."""
    named = [environment.get(name) for name in _JOB_VARIABLES]
    return next(filter(None, named), None) or str(facts.get("job") or facts.get("run_id") or "")


def pod_of(environment: Mapping[str, str]) -> str:
    """Return the pod that this process runs in, empty outside Kubernetes; a pod's host name is its name."""
    named = [environment.get(name) for name in _POD_VARIABLES]
    if environment.get("KUBERNETES_SERVICE_HOST"):
        named.append(environment.get("HOSTNAME"))
    return next(filter(None, named), None) or ""


EVENTS_FILE = "events-{host}.jsonl"
#: Lines of one kind in a minute.
STORM_COUNT = 20


class EventLog:
    """Takes events, each once. ``directory``: of the run. ``stream``: where people read; None for nowhere."""

    def __init__(self, directory: str | os.PathLike[str], stream: TextIO | None) -> None:
        self._path = Path(directory) / EVENTS_FILE.format(host=os.uname().nodename)
        self._stream = stream
        #: The newest ones.
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        #: Events that could not be written.
        self.unwritten_count = 0
        #: Kind -> when its newest lines were written, and events without a line since.
        self._written_ns: dict[str, deque[int]] = {}
        self._withheld: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        """Write an event. What cannot be written is counted: the job goes on."""
        written = self._written_ns.setdefault(event.kind, deque(maxlen=STORM_COUNT))
        if len(written) == STORM_COUNT and event.realtime_ns - written[0] < times.MINUTE_NS:
            self._withheld[event.kind] += 1
            return
        written.append(event.realtime_ns)
        self._write(event)

    def settle(self, realtime_ns: int, *, ended: bool = False) -> None:
        """Say how many events had no line, once the storm of their kind is over for a minute or the job has ended."""
        for kind, count in list(self._withheld.items()):
            if ended or realtime_ns - self._written_ns[kind][-1] >= times.MINUTE_NS:
                del self._withheld[kind]
                text = f"{count_noun(count, 'event')} of the kind {kind} had no line: {STORM_COUNT} a minute have one"
                self._write(Event(kind, text, realtime_ns))

    def _write(self, event: Event) -> None:
        self.events.append(event)
        if self._stream is not None:
            window = "" if not event.window or event.window in event.text else f"; window {event.window}"
            with contextlib.suppress(OSError, ValueError):  # the terminal was closed
                self._stream.write(f"stashtrace: {visible_line(event.text + window)}\n")
                self._stream.flush()
        try:
            with open(self._path, "a", encoding="utf-8", opener=open_own) as file:
                file.write(json.dumps(dataclasses.asdict(event)) + "\n")
        except OSError:
            self.unwritten_count += 1


def read_events(directory: str | os.PathLike[str], host: str = "*") -> list[Event]:
    """Return the events of a host of a run, by default of all, by time; a line that was cut is left out.

    Raises FormatError if a file cannot be read.
    """
    events = []
    for path in sorted(Path(directory).glob(EVENTS_FILE.format(host=host if host == "*" else glob.escape(host)))):
        try:
            lines = read_text(path, errors="replace").splitlines()
        except OSError as error:
            raise FormatError(f"cannot read {path}: {error.strerror}") from error
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                events.append(Event(**json.loads(line)))
    return sorted(events, key=lambda event: event.realtime_ns)
