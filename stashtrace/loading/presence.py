"""Which part of a job a trace holds: the ranks and hosts that are missing, the start of an elastic job that is shown.

Made for ``loading.session``: each function gives a row of ``losses`` or None.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

from stashtrace.errors import UsageError
from stashtrace.format.reader import RawRun
from stashtrace.format.stash_file import StashFile
from stashtrace.loading.identity import Identity, generations, missing_ranks
from stashtrace.schema.kinds import ProcessRole, Severity
from stashtrace.schema.trace import LossRow
from stashtrace.units import ranks_text

_HOSTS_NAMED = 4


def choose_start(run_id: str | None) -> int | None:
    """The start of an elastic job in ``--run ID.N``, None if none is named.

    Raises
    ------
    UsageError
        If what follows the point is no number.
    """
    _, point, number = (run_id or "").partition(".")
    if not point:
        return None
    if not number.isdecimal():
        raise UsageError(f"{run_id} names no start of a run", hint="`--run ID.1` is the second start of run ID")
    return int(number)


def starts_loss(identities: Sequence[Identity], wanted: int | None, run_id: str) -> LossRow | None:
    """That a job was started several times, and which start this is.

    Raises
    ------
    UsageError
        If it has no start of the wanted number.
    """
    shown, known = generations(identities)
    if wanted is not None and wanted not in known:
        count = f"{len(known)} start{'s' if len(known) > 1 else ''}" if known else "no second start"
        raise UsageError(f"run {run_id[:8]} has no start {wanted}", hint=f"it has {count}, counted from 0")
    if len(known) < 2:
        return None
    others = " or ".join(f"--run {run_id[:8]}.{number}" for number in known if number != shown)
    advice = (
        f"torchrun started the ranks {len(known)} times; shown is start {shown} of 0 to {known[-1]}, {others} has "
        "the others"
    )
    return ("format", "other_starts", int(Severity.INFO), len(known) - 1, advice)


def missing_loss(
    identities: Sequence[Identity], files: Sequence[StashFile], runs: Sequence[RawRun], path: str
) -> LossRow | None:
    """That ranks of the job left no file here, and the hosts that may have them."""
    there, missing, world = missing_ranks(identities)
    if not missing or not there:
        return None
    seen = {
        str(f.metadata.get("host", ""))
        for f, who in zip(files, identities, strict=True)
        if who.role is ProcessRole.RANK
    }
    absent = [host for host in _launched_on(runs) if host not in seen]
    more = ", ..." if len(absent) > _HOSTS_NAMED else ""
    where = f" (its part{'s' if len(absent) > 1 else ''} on {', '.join(absent[:_HOSTS_NAMED])}{more})" if absent else ""
    advice = (
        f"rank{'s' if len(missing) > 1 else ''} {ranks_text(missing)} of {world}: no file{where}; {path} holds "
        f"rank{'s' if len(there) > 1 else ''} {ranks_text(there)}; merge the directories of the other hosts: "
        f"`stashtrace merge DIR OTHER...`"
    )
    return ("format", "ranks_missing", int(Severity.DATA_LOSS), len(missing), advice)


def _launched_on(runs: Sequence[RawRun]) -> list[str]:
    """Hosts on which a launcher said that it began."""
    parts = [part for run in runs for part in run.run.get("parts") or [] if isinstance(part, dict)]
    return list(dict.fromkeys(str(part["host"]) for part in parts if part.get("host")))
