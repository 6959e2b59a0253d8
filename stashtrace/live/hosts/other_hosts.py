"""Ranks of the other hosts of the job, as ``live.hosts.share`` on each of them writes them into the run directory.

A host that reports nothing for a while is left out, so that the steps of this one close without it, and taken in again
when it goes on. Ranks that are missing from the start are awaited for a while, as hosts do not begin together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stashtrace.errors import FormatError
from stashtrace.format.growing import GrowingFile, GrowingRun
from stashtrace.format.stash_file import StashFile
from stashtrace.live import times
from stashtrace.loading.run_tables import OpenedRun, missing_ranks
from stashtrace.record.directory import HOSTS_FOLDER
from stashtrace.record.launchers import launchers
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import LossRow
from stashtrace.text import list_some
from stashtrace.units import duration_text, ranks_named

#: Each costs some milliseconds a round: of more ranks none is taken in, as some alone would name wrong causes.
MOST_RANKS = 128
_NAMED = 3


def other_launchers(directory: Path, host: str) -> list[str]:
    """Return the other hosts whose launchers record into a directory."""
    hosts = {str(facts.get("host", "")) for facts in launchers(directory)}
    return sorted(hosts - {host, ""})


class OtherHosts:
    """Ranks of other hosts.

    ``directory``: of the run. ``host``: name of this one. ``run_id``: of the run.
    """

    def __init__(self, directory: Path, host: str, run_id: str) -> None:
        def is_theirs(metadata: Mapping[str, Any]) -> bool:
            return metadata.get("host") != host and metadata.get("run_id") == run_id

        self._directory, self._host = directory, host
        self._run = GrowingRun(str(directory / HOSTS_FOLDER), is_theirs)
        #: Hosts that have reported nothing for a while -> when they last did.
        self._silent: dict[str, int] = {}
        self._taken: list[GrowingFile] = []
        #: Ranks that are missing, and of how many; since when the others have been awaited.
        self._missing: list[int] = []
        self._present: list[int] = []
        self._world = -1
        self._begin_ns = self._now_ns = 0
        self._start = -1
        self._known: set[int] = set()
        self._launchers: list[str] = []
        #: The number of ranks that other hosts report, if it is too large; else 0.
        self._too_many = 0
        self._clock_losses: list[LossRow] = []
        #: Ranks that other hosts report and that record.
        self._spoken_for: set[int] = set()
        #: Why nothing can be read of what others report.
        self._error = ""

    def launchers(self) -> list[str]:
        """Return the other hosts whose launchers record into the same directory."""
        return other_launchers(self._directory, self._host)

    @property
    def held_bytes(self) -> int:
        """Size of the rows in memory."""
        return self._run.held_bytes

    @property
    def is_incomplete(self) -> bool:
        """Whether ranks of hosts that record into the same directory were missing in the last round."""
        return bool(self._missing) and bool(self._launchers)

    def round(self, at_ns: int) -> list[StashFile]:
        """Read what is new since the last round; return the ranks of the hosts that report; ``at_ns``: now."""
        self._now_ns, self._error = at_ns, ""
        if not (self._directory / HOSTS_FOLDER).is_dir():
            return []
        try:
            self._run.look(at_ns)
        except FormatError as error:  # what this host sees itself does not depend on it
            self._error, self._taken = str(error), []
            return []
        newest: dict[str, int] = {}
        for file in self._run.files:
            if file.is_open:
                host = str(file.metadata.get("host", ""))
                newest[host] = max(newest.get(host, 0), file.newest_ns)
        self._silent = {host: seen for host, seen in newest.items() if at_ns - seen > times.SILENT_NS}
        self._taken = [file for file in self._run.files if not self._is_silent(file)]
        count = len(self.recording())
        self._too_many = count if count > MOST_RANKS else 0
        if self._too_many:
            self._run.forget(at_ns, ())
            self._taken = []
        return list(self._taken)

    def _is_silent(self, file: StashFile) -> bool:
        return str(file.metadata.get("host", "")) in self._silent

    def recording(self) -> list[GrowingFile]:
        """Return the ranks that had not ended in the last round, without those of silent hosts."""
        return [file for file in self._taken if file.is_open]

    def is_recording(self, file: StashFile) -> bool:
        """Whether a file is one of :meth:`recording`."""
        return any(file is one for one in self.recording())

    def awaited(self, opened: OpenedRun, at_ns: int) -> bool:
        """Return whether ranks may still come without which no step can close; ``at_ns``: now."""
        self._present, self._missing, self._world = missing_ranks([p.identity for p in opened.everyone])
        self._clock_losses = opened.clock_losses
        if opened.start != self._start:
            self._start, self._begin_ns, self._known = opened.start, at_ns, set()
        self._spoken_for = {
            p.identity.rank
            for p in opened.everyone
            if p.identity.role is ProcessRole.RANK and self.is_recording(p.file)
        }
        self._known |= {p.identity.rank for p in opened.everyone if p.identity.role is ProcessRole.RANK}
        if not self._missing:
            return False
        self._launchers = self.launchers()
        unseen = set(self._missing) - self._known
        if self._too_many:
            return False
        return bool(unseen) and bool(self._launchers) and at_ns - self._begin_ns < times.SILENT_NS

    def spoken_for(self, at_ns: int) -> set[int]:
        """Return the ranks about which their hosts say whether they are stuck; ``at_ns``: now.

        What is known of them here is some seconds old, and their processes cannot be examined. Ranks of which nothing
        is known yet are awaited.
        """
        awaited = self._launchers and not self._too_many and at_ns - self._begin_ns < times.SILENT_NS
        return self._spoken_for | (set(self._missing) - self._known if awaited else set())

    @property
    def known(self) -> Collection[int]:
        """Return the ranks of which something was known at any time, those of this host among them."""
        return self._known

    def forget(self, before_ns: int, keep: Collection[str]) -> None:
        """Let go of rows as ``GrowingRun.forget`` does."""
        self._run.forget(before_ns, keep)

    def lacking(self, except_of: Collection[str] = ()) -> str:
        """Say which ranks this host knows nothing of, and why; empty if there are none.

        ``except_of``: hosts of which it is said already that their ranks are missing.
        """
        unseen = sorted(set(self._missing) - self._known)
        if not unseen or self._too_many:
            return ""
        if not self._launchers:
            return f"{ranks_named(unseen)} of {self._world} (other hosts do not record into {self._directory})"
        silent = [host for host in self._launchers if host not in except_of]
        return f"{ranks_named(unseen)} of {self._world} ({list_some(silent, _NAMED)} without --live)" if silent else ""

    def notes(self) -> list[str]:
        """Say what this host cannot know, in a sentence each."""
        notes = [
            f"{host} has reported nothing of its ranks for {duration_text(self._now_ns - seen)}: "
            "steps close without them, and waits for them have no cause"
            for host, seen in sorted(self._silent.items())
        ]
        notes += [self._error] if self._error else []
        unseen = sorted(set(self._missing) - self._known)
        if self._too_many:
            notes.append(
                f"other hosts report {self._too_many} ranks, and a follower reads {MOST_RANKS} at most: "
                "waits for them have no cause"
            )
        elif unseen and self._launchers:
            who = list_some(self._launchers, _NAMED)
            notes.append(
                f"nothing is known of {ranks_named(unseen)} of {self._world}, which may run on {who} without --live: "
                "waits for them have no cause"
            )
        elif unseen:
            notes.append(
                f"this host sees {ranks_named(self._present)} of {self._world}: other hosts do not record into "
                f"{self._directory}, so it cannot say for which of their ranks the ranks of this host wait"
            )
        return notes + [text for _, reason, _, _, text in self._clock_losses if reason == "clock_stepped"]
