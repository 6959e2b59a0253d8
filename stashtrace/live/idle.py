"""Recording in a run that is idle (``run --idle``): its processes record nothing until a window is asked for.

    request ──► processes record ──► steps K to K+M-1 close ──► window sealed ──► idle again
                 K: the first step that all ranks have begun since

Each rank begins to record with its next step and reports its number, so that steps keep their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stashtrace.analysis.steps.steps import host_steps
from stashtrace.analysis.steps.window import with_window
from stashtrace.errors import MissingDataError
from stashtrace.live import times
from stashtrace.live.hosts.requests import Request
from stashtrace.loading.run_tables import Window
from stashtrace.record.follower import set_period
from stashtrace.schema.trace import Trace
from stashtrace.text.units import ranks_named, span_text

#: Fact of a process: the step with which it began to record, and when.
_FACT = "step_begins"
_MOST_PERIODS = 255
#: What the state of an idle run says.
ASLEEP = (
    "the run is idle: until a window is asked for no step is recorded, so slow steps, growing stalls, and stuck or "
    "lost ranks are not noticed"
)


@dataclass(slots=True)
class IdleRecording:
    """Turns recording on and off. ``directory``: of the run."""

    directory: Path
    #: Requests of the period that records.
    requests: list[Request] = field(default_factory=list)
    is_on: bool = False
    #: When the period began, on CLOCK_MONOTONIC.
    since_ns: int = 0
    #: Ranks that have begun no step in the period, of those that are known.
    late_ranks: list[int] = field(default_factory=list)
    _periods_count: int = 0

    def begin(self, at_ns: int) -> None:
        """Let the processes record. Errors of the system are raised as they are."""
        if not self.is_on:
            set_period(self.directory, self._periods_count % _MOST_PERIODS + 1)
            self._periods_count += 1
            self.is_on, self.since_ns, self.late_ranks = True, at_ns, []

    def end(self) -> None:
        """Let them be idle again. Errors of the system are raised as they are."""
        self.is_on, self.requests = False, []
        set_period(self.directory, 0)

    def why_not(self) -> str:
        """Say why a window cannot begin, as far as that is known."""
        late = self.late_ranks
        who = f"; {ranks_named(late)} may be stuck" if late else ""
        return f"no step of all ranks has begun for {span_text(times.PATIENCE_NS)}{who}"

    def find_begin(self, trace: Trace, origin_ns: int) -> Window | None:
        """Return the first step that all ranks have begun to record; None while it is not known.

        ``origin_ns``: zero of the trace's clock on CLOCK_MONOTONIC.
        """
        begun = self._begun(trace, origin_ns)
        ranks = {rank for rank in trace.processes["rank"].tolist() if rank >= 0}
        self.late_ranks = sorted(ranks - set(begun))
        if not begun or len(begun) < len(ranks):
            return None
        first = max(step for step, _ in begun.values())
        from_there = Window(0, {rank: begin for rank, (_, begin) in begun.items()})
        try:
            table = host_steps(with_window(trace, from_there, origin_ns))
        except MissingDataError:
            return None
        begins = {}
        for rank, (step, begin) in begun.items():
            moments = table["begin_ns"][table["rank"] == rank]
            if len(moments) <= first - step:
                return None  # it has not come so far yet
            begins[rank] = int(moments[first - step]) if first > step else begin
        return Window(first, begins)

    def _begun(self, trace: Trace, origin_ns: int) -> dict[int, tuple[int, int]]:
        """Return the step with which each rank began to record in this period, and when that began."""
        ranks = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
        facts, begun = trace.metadata, {}
        for row in facts.take(facts["key_code"] == trace.strings.find(_FACT)).rows():
            step, _, moment = trace.text(row["value_code"]).partition(" ")
            if step.isdecimal() and moment.isdecimal() and int(moment) >= self.since_ns:
                begin = int(moment) - times.CLOCKS_APART_NS - origin_ns
                begun[max(ranks.get(row["process_id"], -1), 0)] = int(step), begin
        return begun
