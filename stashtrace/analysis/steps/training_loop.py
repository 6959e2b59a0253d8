"""The training loop of one thread as a sequence of tokens, and its division into steps.

    tokens   W = batch wait, F = forward, B = backward, U = update (optimizer step, or one skipped by a GradScaler)
    unit     begins with a batch wait (several in a row are one), or, where no wait led in, with a forward that
             follows a backward, an update, or a forward of the same module
    step     all units up to and with the last update before the next forward or batch wait
    W F B . W F B U | W F B . W F B U | W V | W V | W F B ...        V = forward under no_grad: validation
    V V V V F B U F B U | V V V V F B U F B U | ...                  rollout and its updates: an iteration

The rules and what they mean for a user are in ``docs/concepts/steps.md``. Lightning, and L-BFGS, hand the whole
training step to ``optimizer.step`` as a closure, which is no update:

    optimizer.step(closure)  [ forward ][ sleep ][ backward ][ update ]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Bools, Int64, TimeSet, int64, is_one_of, window_around
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import Phase, PhaseFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Kinds of steps in which the model is trained, and those that run it without gradients alone.
UPDATE_KINDS = ("train", "skipped_update", "iteration", "marked")
QUIET_KINDS = ("validation", "inference")
#: An evaluation loader leads in each forward, or each few (model, loss, metric); a rollout waits for few batches.
_WAITS_PER_FORWARD = 0.2
#: As long a run of forwards as the others are: at least this part of their median.
_AS_LONG = 0.5
#: A rollout serves several updates: at most this part of them has one of its own.
_MOST_ROLLOUTS = 0.67
WAIT, FORWARD, BACKWARD, UPDATE = 0, 1, 2, 3
_KIND_OF_PHASE = {
    Phase.FORWARD: FORWARD,
    Phase.BACKWARD: BACKWARD,
    Phase.OPTIMIZER: UPDATE,
    Phase.UPDATE_SKIPPED: UPDATE,
}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Columns of one thread's tokens in order of their begin."""

    begin: Int64
    end: Int64
    kind: Int64
    no_grad: Bools
    training: Bools
    skipped: Bools
    name: Int64

    def __len__(self) -> int:
        return len(self.begin)


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Steps of one rank, in order; they neither overlap nor leave gaps."""

    begin: Int64
    end: Int64
    kind: npt.NDArray[np.str_]

    @classmethod
    def none(cls) -> StepColumns:
        """No step."""
        return cls(int64([]), int64([]), np.empty(0, dtype="U16"))


#: Columns of ``phases`` that tokens are made of.
PHASES_OF_TOKENS = ("phase_code", "phase_flags", "begin_ns", "end_ns", "name_code")


def tokens_of(phases: dict[str, Int64], wait_begin: Int64, wait_end: Int64) -> Tokens:
    """Tokens of a thread from the rows of its phases and batch waits.

    Nested phases are not tokens (recomputation inside backward, which makes what ran without gradients before it a
    forward of training), but an update inside backward is: it counts as ending with the phase around it. Where an
    optimizer calls a closure, the closure is the step's forward and backward and comes before the update; what it
    computes again, as line searches do, is part of the update.
    """
    code, flags = phases["phase_code"], phases["phase_flags"]
    kind = np.full(len(code), -1, dtype=np.int64)
    for phase, token in _KIND_OF_PHASE.items():
        kind[code == int(phase)] = token  # an array is compared slowly with a member of an enumeration
    nested = (flags & int(PhaseFlag.NESTED)) != 0
    end = phases["end_ns"].copy()
    outer = np.flatnonzero(~nested & (kind >= 0))
    outer = outer[np.argsort(phases["begin_ns"][outer], kind="stable")]
    inner = np.flatnonzero(nested & (kind == UPDATE))
    at = window_around(phases["begin_ns"][inner], end[inner], phases["begin_ns"][outer], end[outer])
    end[inner[at >= 0]] = end[outer[at[at >= 0]]]
    first_begin, again = _closures(phases["begin_ns"], end, np.where(nested, -1, kind))
    no_grad = ((flags & int(PhaseFlag.NO_GRAD)) != 0) & ~_computed_again(phases, kind, nested)
    keep = np.flatnonzero((kind >= 0) & (~nested | (kind == UPDATE)) & ~again)
    waits = len(wait_begin)
    begin = np.concatenate([first_begin[keep], wait_begin])
    no = np.zeros(waits, dtype=bool)
    columns = (
        begin,
        np.concatenate([end[keep], wait_end]),
        np.concatenate([kind[keep], np.full(waits, WAIT)]),
        np.concatenate([no_grad[keep], no]),
        np.concatenate([(flags[keep] & int(PhaseFlag.TRAINING)) != 0, no]),
        np.concatenate([code[keep] == int(Phase.UPDATE_SKIPPED), no]),
        np.concatenate([phases["name_code"][keep], np.zeros(waits, dtype=np.int64)]),
    )
    order = order_by(begin, columns[2], columns[1], *columns[3:])
    return Tokens(*(c[order] for c in columns))


def _computed_again(phases: dict[str, Int64], kind: Int64, nested: Bools) -> Bools:
    """Mask of the forwards that the next backward computes again inside, as it does for checkpointed modules."""
    begin, end, name = (phases[column] for column in ("begin_ns", "end_ns", "name_code"))
    by_begin = np.argsort(begin, kind="stable")
    backwards, forwards, inner = (
        by_begin[chosen[by_begin]]
        for chosen in (~nested & (kind == BACKWARD), ~nested & (kind == FORWARD), nested & (kind == FORWARD))
    )
    mask = np.zeros(len(kind), dtype=bool)
    if not len(backwards) or not len(inner):
        return mask
    around = window_around(begin[inner], end[inner], begin[backwards], end[backwards])
    again = GroupBy(around[around >= 0], name[inner[around >= 0]])
    before = GroupBy(np.searchsorted(begin[backwards], begin[forwards]), name[forwards])
    count = np.append(again.sizes, 0)[again.find(*before.keys)]
    # The last ones of a module are its training, those before them may be a rollout of it.
    mask[forwards] = before.sizes[before.number] - before.position <= count[before.number]
    return mask


def _closures(begin: Int64, end: Int64, kind: Int64) -> tuple[Int64, Bools]:
    """Begin of each phase, that of an update behind the closure it calls; and which phases are a closure's again."""
    at, again = begin.copy(), np.zeros(len(kind), dtype=bool)
    updates = np.flatnonzero(kind == UPDATE)
    updates = updates[np.argsort(begin[updates], kind="stable")]
    inner = np.flatnonzero((kind == FORWARD) | (kind == BACKWARD))
    inner = inner[np.argsort(begin[inner], kind="stable")]
    if not len(updates) or not len(inner):
        return at, again
    around = window_around(begin[inner], end[inner], begin[updates], end[updates])
    inner, around = inner[around >= 0], around[around >= 0]
    calls = np.unique(around)
    at[updates[calls]] = np.maximum(end[updates[calls]] - 1, begin[updates[calls]])
    # One evaluation reaches up to the first backward, and without any to the first forward.
    backward = np.flatnonzero(kind[inner] == BACKWARD)
    last = np.searchsorted(around, calls, side="left")
    ended = GroupBy(around[backward])
    last[np.searchsorted(calls, ended.values)] = backward[ended.first]
    again[inner] = np.arange(len(inner)) > last[np.searchsorted(calls, around)]
    return at, again


def unit_starts(tokens: Tokens) -> Bools:
    """True where a unit begins."""
    kind = tokens.kind
    previous = np.concatenate([[UPDATE], kind[:-1]])
    wait_first = (kind == WAIT) & (previous != WAIT)
    # The first forward of a run shows whether a wait led in; later ones begin a unit when the module repeats.
    is_forward = kind == FORWARD
    run_first = is_forward & (previous != FORWARD)
    run = np.cumsum(run_first) - 1
    first_rows = np.flatnonzero(run_first)
    forward_first = run_first & ((previous == BACKWARD) | (previous == UPDATE))
    if len(first_rows):
        led_by_wait = (previous[first_rows] == WAIT)[np.maximum(run, 0)]
        same_module = tokens.name == tokens.name[first_rows][np.maximum(run, 0)]
        forward_first |= is_forward & ~run_first & ~led_by_wait & same_module
    forward_first |= _training_goes_on(tokens, previous)
    # In a unit that a wait led in, a second forward before the update stays inside.
    waits_before = np.cumsum(wait_first)
    updates_before = np.cumsum(kind == UPDATE)
    last_update_at_wait = np.concatenate([[-1], updates_before[wait_first]])[waits_before]
    unit_has_wait = (waits_before > 0) & (last_update_at_wait == updates_before - (kind == UPDATE))
    forward_first &= ~(unit_has_wait & (previous == BACKWARD))
    starts = wait_first | forward_first
    if len(starts):
        starts[0] = True
    return np.asarray(starts, dtype=bool)


def _training_goes_on(tokens: Tokens, previous: Int64) -> Bools:
    """True at a training forward after forwards without gradients that a wait led in, where training has no waits.

    The wait was for the last batch of an evaluation. In a loop whose training waits for its batches, such forwards are
    those of a teacher, on the batch that is trained on.
    """
    trains = (tokens.kind == FORWARD) & ~tokens.no_grad
    begins = trains & (previous != FORWARD)
    fed = np.count_nonzero(begins & (previous == WAIT))
    if 2 * fed >= np.count_nonzero(begins):
        return np.zeros(len(tokens), dtype=bool)
    quiet_before = np.concatenate([[False], (tokens.kind == FORWARD)[:-1] & tokens.no_grad[:-1]])
    return np.asarray(trains & quiet_before, dtype=bool)


def update_groups(tokens: Tokens) -> Int64:
    """Group number of each update: updates with no forward or batch wait between them belong together.

    So do those of several optimizers that take turns on one batch (adversarial networks; actor and critic): a group
    ends where an optimizer steps that has stepped in it, or where a batch is waited for.
    """
    kind = tokens.kind
    separators = (kind == WAIT) | (kind == FORWARD)
    if not (kind == FORWARD).any():
        separators |= kind == BACKWARD
    updates = np.flatnonzero(kind == UPDATE)
    if not len(updates):
        return int64([])
    passed = np.cumsum(separators)[updates]
    new = np.concatenate([[True], np.diff(passed) > 0])
    names = tokens.name[updates]
    if len(np.unique(names)) > 1:
        _join_turns(new, names, np.cumsum(kind == WAIT)[updates])
    return int64(np.cumsum(new) - 1)


def _join_turns(new: Bools, names: Int64, waits: Int64) -> None:
    """Clear the begin of each group that continues the one before it with another optimizer."""
    joined = []
    stepped: set[int] = set()
    for at, (name, wait) in enumerate(zip(names.tolist(), waits.tolist(), strict=True)):
        if new[at]:
            if at and name not in stepped and wait == waits[at - 1]:
                joined.append(at)
            else:
                stepped.clear()
        stepped.add(name)
    if len(joined) > 1:  # once is one phase of the training after another
        new[joined] = False


@dataclass(frozen=True, slots=True)
class _QuietRuns:
    """Forwards without gradients before the first other phase of each segment, and how they differ from training."""

    #: Of each segment: up to each group of updates, and what follows the last.
    forwards: Int64
    #: A batch wait leads in each forward, or each few.
    over_a_loader: bool
    #: The modules are in the same mode (``train`` or ``eval``) as where they are trained.
    like_training: bool
    #: A batch wait leads in most of the training.
    fed: bool


def _quiet_runs(tokens: Tokens, last_update: Int64) -> _QuietRuns:
    groups = len(last_update)
    kind = tokens.kind
    segment = np.searchsorted(last_update, np.arange(len(kind)), side="left")
    forward = kind == FORWARD
    training = forward & ~tokens.no_grad
    serious = training | (kind == BACKWARD) | (kind == UPDATE)
    passed = np.cumsum(serious)
    at_begin = np.concatenate([[0], passed[last_update]])
    quiet = forward & tokens.no_grad & (passed == at_begin[segment])
    before = np.concatenate([[UPDATE], kind[:-1]])
    waited = np.count_nonzero(quiet & (before == WAIT))
    fed = np.count_nonzero(training & (before == WAIT))
    trained = np.count_nonzero(training & (before != FORWARD))
    return _QuietRuns(
        GroupBy.numbered(segment, groups + 1).count(quiet),
        bool(quiet.any() and waited >= _WAITS_PER_FORWARD * np.count_nonzero(quiet)),
        _mostly(tokens.training[quiet]) == _mostly(tokens.training[training]),
        2 * fed > trained,
    )


def _mostly(marks: Bools) -> bool:
    return 2 * int(np.count_nonzero(marks)) > len(marks)


def steps_of(tokens: Tokens, *, rollouts: bool = True) -> StepColumns:
    """Steps of one thread without step marks. ``rollouts``: they may be iterations of a rollout and its updates."""
    if len(tokens) == 0:
        return StepColumns.none()
    units = GroupBy(np.cumsum(unit_starts(tokens)))
    first = units.first
    has_forward, has_backward, has_update = (units.any(tokens.kind == kind) for kind in (FORWARD, BACKWARD, UPDATE))
    has_grad = units.any((tokens.kind == FORWARD) & ~tokens.no_grad)
    unit_begin = tokens.begin[first]
    latest = np.maximum.accumulate(tokens.end)
    unit_end = latest[np.append(first[1:], len(tokens)) - 1]
    if not has_update.any():
        chosen = np.flatnonzero(has_forward)
        return _without_updates(unit_begin[chosen], unit_end[chosen], has_backward[chosen])

    updates = np.flatnonzero(tokens.kind == UPDATE)
    by_group = GroupBy(update_groups(tokens))
    groups = len(by_group)
    last_update = updates[by_group.last]
    train_end = latest[last_update]
    skipped = by_group.all(tokens.skipped[updates])

    # Segment s = units after group s-1 up to group s; segment `groups` is what follows the last update.
    segment = np.searchsorted(last_update, first, side="left")
    quiet = has_forward & ~has_backward & ~has_update & ~has_grad
    serious = has_forward & ~quiet | has_backward | has_update
    serious_before: Int64 = np.cumsum(serious) - serious
    segment_first = np.searchsorted(segment, np.arange(groups + 1), side="left")
    leading = quiet & (serious_before == np.append(serious_before, serious.sum())[segment_first[segment]])
    runs = _quiet_runs(tokens, last_update)
    if rollouts and _rolls_out(runs):
        head = np.flatnonzero((segment == 0) & (leading | has_backward | has_update))
        rollout_next = np.append(runs.forwards[1:groups] > 0, True)
        return _iterations(int(unit_begin[head[0]]), train_end[rollout_next])
    with_leading = np.unique(segment[leading])
    with_leading = with_leading[(with_leading > 0) & (with_leading < groups)]
    # Most updates have one, and of no loader: it is part of the step.
    if not runs.over_a_loader and groups > 3 and 2 * len(with_leading) > groups - 1:
        leading &= segment == groups
        has_backward |= quiet & ~leading
    trains = has_backward | has_update | (has_forward if not has_backward.any() else False)
    return _with_updates(segment, unit_begin, unit_end, leading, trains, train_end, skipped)


def _rolls_out(runs: _QuietRuns) -> bool:
    """Whether runs of forwards without gradients make the data of the updates after them (reinforcement learning).

    A rollout comes before its updates: the first update has one, and nothing follows the last. Validation comes after
    them, goes through a loader, or puts the model into another mode and is short compared to the updates. Where a
    recording begins or ends in between, mode and length alone decide.
    """
    groups = len(runs.forwards) - 1
    inner = runs.forwards[1:groups]
    inner = inner[inner > 0]
    if runs.over_a_loader or len(inner) < 2 or len(inner) > _MOST_ROLLOUTS * groups:
        return False
    usual = _AS_LONG * float(np.median(inner))
    begins, ends = bool(runs.forwards[0] >= usual), bool(runs.forwards[groups] >= usual)
    prevails = int(inner.sum()) >= groups and not runs.fed
    if begins != ends:
        return begins and (runs.like_training or prevails)
    return runs.like_training and prevails


def _iterations(begin: int, ends: Int64) -> StepColumns:
    """A step from each rollout to the last of its updates; what follows the last update was never finished."""
    begins = np.concatenate([[min(begin, int(ends[0]))], ends[:-1]])
    return StepColumns(begins, ends, np.full(len(ends), "iteration"))


def _without_updates(begin: Int64, end: Int64, trains: Bools) -> StepColumns:
    if len(begin) == 0:
        return StepColumns.none()
    quiet = "validation" if trains.any() else "inference"
    return StepColumns(begin, np.append(begin[1:], end[-1]), np.where(trains, "train", quiet))


def _with_updates(
    segment: Int64, unit_begin: Int64, unit_end: Int64, leading: Bools, trains: Bools, train_end: Int64, skipped: Bools
) -> StepColumns:
    rows = np.flatnonzero(leading)
    following = np.append(unit_begin[1:], np.int64(0))
    same_segment = np.append(segment[1:] == segment[:-1], False)
    quiet_end = np.where(same_segment, following, unit_end)[rows]
    # In the last segment only the leading run counts; what follows it was never finished.
    kinds = np.concatenate([np.full(len(rows), "validation"), np.where(skipped, "skipped_update", "train")])
    ends = np.concatenate([quiet_end, train_end])
    order = np.argsort(ends, kind="stable")
    ends, kinds = ends[order], kinds[order]
    # A forward long before training (a dry run that shapes lazy modules) has neither backward nor update.
    head = np.flatnonzero((segment == 0) & (trains | leading))
    begin = min(int(unit_begin[head[0]]), int(ends[0]))
    return StepColumns(np.concatenate([[begin], ends[:-1]]), ends, kinds)


def marked_steps(tokens: Tokens, marks: Int64) -> StepColumns:
    """Steps that end at each mark; the first begins with the first token before it, or at the first mark."""
    marks = np.unique(marks)
    before = tokens.begin[tokens.begin < marks[0]] if len(tokens) else int64([])
    begin = np.concatenate([before[:1], marks[:-1]])
    end = marks if len(before) else marks[1:]
    return StepColumns(begin, end, np.full(len(begin), "marked"))


def micro_batches(tokens: Tokens, steps: StepColumns) -> Int64:
    """Sub-steps of each step: backwards that follow a forward, else batch waits in a row, at least 1."""
    kind = tokens.kind
    step = np.searchsorted(steps.end, tokens.begin, side="right")
    inside = (step < len(steps.end)) & (tokens.begin >= (steps.begin[0] if len(steps.begin) else 0))
    relevant = np.flatnonzero(inside & ((kind == FORWARD) | (kind == BACKWARD)))
    after_forward = (kind[relevant] == BACKWARD) & (np.concatenate([[-1], kind[relevant][:-1]]) == FORWARD)
    backwards = np.bincount(step[relevant][after_forward], minlength=len(steps.end))
    waits = np.flatnonzero(inside & (kind == WAIT) & (np.concatenate([[UPDATE], kind[:-1]]) != WAIT))
    loads = np.bincount(step[waits], minlength=len(steps.end))
    return int64(np.maximum(np.where(backwards > 0, backwards, loads), 1))


_OF_CLOSURES = (Phase.FORWARD, Phase.BACKWARD)


def runs_closure(phases: Table, rows: Int64) -> Bools:
    """Return the mask of the rows that are phases of optimizers in which a forward or a backward of these rows ran."""
    code, begin, end = (phases[name][rows] for name in ("phase_code", "begin_ns", "end_ns"))
    return np.asarray((code == int(Phase.OPTIMIZER)) & (_ended_inside(code, end, end) > begin))


def update_times(trace: Trace, process_id: int) -> TimeSet:
    """Return when a process updated parameters.

    What an optimizer does before the last forward or backward inside its step has ended is its closure's, whatever it
    is: a closure that sleeps between both leaves no other mark.
    """
    begin, end = update_windows(trace, process_id)
    return TimeSet.of(begin, end)


def update_windows(trace: Trace, process_id: int) -> tuple[Int64, Int64]:
    """Return begin and end of each update of a process, in the order of their phases; see :func:`update_times`."""
    phases = trace.phases
    mine = (phases["process_id"] == process_id) & ((phases["phase_flags"] & PhaseFlag.BACKGROUND) == 0)
    part = phases.take(mine)
    updates = np.flatnonzero(part["phase_code"] == Phase.OPTIMIZER)
    end = part["end_ns"][updates]
    return np.maximum(part["begin_ns"][updates], _ended_inside(part["phase_code"], part["end_ns"], end)), end


def _ended_inside(code: npt.NDArray[np.integer], end: Int64, until: Int64) -> Int64:
    """Return when the last forward or backward of these phases had ended before each moment."""
    ends = np.sort(end[is_one_of(code, _OF_CLOSURES)])
    last = np.searchsorted(ends, until, side="right") - 1
    return np.append(ends, np.iinfo(np.int64).min)[last]
