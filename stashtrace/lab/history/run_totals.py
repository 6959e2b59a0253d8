"""Figures of each run that several questions need: job, step, shares of its time, machine hours, price, energy."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.compare.job_identity import DECIDING
from stashtrace.analysis.compare.steps_of_run import STEP
from stashtrace.analysis.intervals import Floats, Int64
from stashtrace.lab.history.gather import History
from stashtrace.lab.history.run_files import OUTSIDE
from stashtrace.lab.recommend.instance_catalog import Catalog
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import KIND_NAMES

#: Kinds of time, then the time outside of counted steps.
CAUSES = (*KIND_NAMES, OUTSIDE)
#: Options whose values differ between runs of one job: where it writes, its name, its seed, its rendezvous.
_OWN_OPTION = re.compile(
    r"--?(seed|(run|exp|experiment|job)?[-_]?(name|id)|out(put)?([-_]?(dir|path|file))?|log([-_]?(dir|path|file))?"
    r"|save([-_]?(dir|path))?|rdzv[-_]\w+|master[-_]\w+|node[-_]rank|local[-_]ranks?[-_]filter|tag|date)"
)
_HOUR_NS = 3_600_000_000_000


def job_name(words: list[str]) -> str:
    """Return the command of a job, without values that differ from run to run.

    Examples
    --------
    >>> job_name(["torchrun", "--rdzv-id=7", "train.py", "--seed", "3", "--lr", "0.1"])
    'torchrun train.py --lr 0.1'
    """
    kept: list[str] = []
    skip = False
    for word in words:
        if skip and not word.startswith("-"):
            skip = False
            continue
        skip = False
        name, equals, _ = word.partition("=")
        if _OWN_OPTION.fullmatch(name):
            skip = not equals
            continue
        kept.append(word)
    return " ".join(kept)


@dataclass(frozen=True)
class RunTotals:
    """Figures by run; arrays are in the order of the history's runs."""

    history: History
    #: Instances and prices; an instance without a name has the price of ``instance``.
    catalog: Catalog
    #: Name of the instance of runs that do not say theirs.
    instance: str = ""

    @cached_property
    def jobs(self) -> list[str]:
        """Command of each run's job; see :func:`job_name`."""
        known: dict[str, str] = {}
        for text in dict.fromkeys(self.history.fact("launch").tolist()):
            try:
                words = json.loads(text) if text else []
            except ValueError:
                words = []
            known[text] = job_name([word for word in words if isinstance(word, str)])
        commands = self.history.fact("command")
        return [known[text] or str(own) for text, own in zip(self.history.fact("launch"), commands, strict=True)]

    @cached_property
    def series(self) -> Int64:
        """Number of the job of each run: equal for runs that ``check`` would compare."""
        deciding = ["\0".join(parts) for parts in zip(*(self.history.fact(name) for name in DECIDING), strict=True)]
        keys = [f"{job}\0{more}" for job, more in zip(self.jobs, deciding, strict=True)]
        return np.unique(np.array(keys, dtype=np.str_), return_inverse=True)[1].reshape(-1).astype(np.int64)

    @cached_property
    def step_ns(self) -> Floats:
        """Mean step of each run over its ranks; 0 without steps."""
        rows = self.history.section("kind")
        in_step = rows["kind"] == STEP
        run, count = rows["run"][in_step], len(self.history)
        sizes = np.bincount(run, minlength=count)
        return np.bincount(run, weights=rows["mean_ns"][in_step], minlength=count) / np.maximum(sizes, 1)

    @cached_property
    def steps_count(self) -> Int64:
        """Counted steps of each run."""
        rows = self.history.section("kind")
        in_step = rows["kind"] == STEP
        out = np.zeros(len(self.history), dtype=np.int64)
        np.maximum.at(out, rows["run"][in_step], rows["steps_count"][in_step])
        return out

    @cached_property
    def ranks_count(self) -> Int64:
        """Ranks of each run; 1 for a job without."""
        return np.maximum(np.bincount(self.history.section("rank")["run"], minlength=len(self.history)), 1)

    @cached_property
    def hosts_count(self) -> Int64:
        """Hosts of each run."""
        return np.array([max(len(text.split(",")), 1) for text in self.history.fact("host_names").tolist()])

    @cached_property
    def hours(self) -> Floats:
        """Machine hours of each run: its length times its hosts."""
        return (self.history.end_ns - self.history.begin_ns) / _HOUR_NS * self.hosts_count

    @cached_property
    def shares(self) -> Floats:
        """Part of the time of each run by :data:`CAUSES`, mean over ranks; rows sum to 1."""
        rows = self.history.section("kind")
        places = {name: at for at, name in enumerate(KIND_NAMES)}
        kind = np.array([places.get(name, -1) for name in rows["kind"].tolist()], dtype=np.int64)
        known = kind >= 0
        spent = np.zeros((len(self.history), len(CAUSES)))
        np.add.at(
            spent, (rows["run"][known], kind[known]), (rows["mean_ns"] * rows["steps_count"].astype(float))[known]
        )
        whole = np.maximum((self.history.end_ns - self.history.begin_ns) * self.ranks_count.astype(float), 1.0)
        inside = spent.sum(axis=1)
        whole = np.maximum(whole, inside)  # clocks of launcher and ranks may differ a little
        spent[:, -1] = whole - inside
        shares: Floats = spent / whole[:, None]
        return shares

    @cached_property
    def price(self) -> Floats:
        """Price of an hour of each run's machine; not a number where none is known."""
        prices = {}
        for name in dict.fromkeys(self.history.fact("instance").tolist()):
            one = self.catalog.get(name or self.instance)
            prices[name] = np.nan if one is None or one.price_per_hour is None else one.price_per_hour
        return np.array([prices[name] for name in self.history.fact("instance").tolist()], dtype=np.float64)

    @cached_property
    def currency(self) -> str:
        """Currency of the prices that were used; empty if none was."""
        names = dict.fromkeys(name or self.instance for name in self.history.fact("instance").tolist())
        known = (self.catalog.get(name) for name in names)
        return next((one.currency for one in known if one is not None and one.price_per_hour is not None), "")

    @cached_property
    def joules(self) -> Floats:
        """Energy of each run's devices by :data:`CAUSES`; not a number where none was measured."""
        rows = self.history.section("energy")
        places = {name: at for at, name in enumerate(CAUSES)}
        at = np.array([places.get(name, len(CAUSES) - 1) for name in rows["kind"].tolist()], dtype=np.int64)
        out = np.zeros((len(self.history), len(CAUSES)))
        np.add.at(out, (rows["run"], at), rows["energy_mj"] / 1e3)
        out[np.bincount(rows["run"], minlength=len(self.history)) == 0] = np.nan
        return out

    @cached_property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Whether the command of a run ended with another exit code than 0."""
        failed: npt.NDArray[np.bool_] = self.history.number("exit_code", 0) != 0
        return failed


def typical_steps(totals: RunTotals) -> Floats:
    """Return for each run the median step of the runs of its job; 0 without steps."""
    out = np.zeros(len(totals.history))
    for rows in GroupBy(totals.series):
        steps = totals.step_ns[rows]
        if (steps > 0).any():
            out[rows] = np.median(steps[steps > 0])
    return out
