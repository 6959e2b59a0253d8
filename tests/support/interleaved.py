"""Pipelines in which each rank holds several stages, by hand: rank r of R holds the stages r, r + R, and so on.

rank 0   stages 0, 2    [F0 a][F0 b][F2 a][F2 b].....[B2 a]..     activations go round: from the last rank to
rank 1   stages 1, 3    .....[F1 a][F1 b][F3 a][B3 a]......       rank 0, and gradients the other way
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from builders import MS
from wait_chains import Extra, Job, none

from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.trace import Trace

FORWARD_MS, BACKWARD_MS = 4.0, 8.0


class Action(NamedTuple):
    """A computation of a rank: of which micro-batch, in which stage, in which direction."""

    stage: int
    batch: int
    forward: bool


def one_forward_one_backward(rank: int, ranks: int, chunks: int, microbatches: int) -> list[Action]:
    """Interleaved 1F1B as of Megatron: micro-batches go through a chunk in groups of as many as there are ranks."""

    def action(number: int, forward: bool) -> Action:
        turn, place = divmod(number, ranks * chunks)
        chunk = place // ranks if forward else chunks - 1 - place // ranks
        return Action(chunk * ranks + rank, turn * ranks + place % ranks, forward)

    whole = chunks * microbatches
    ahead = min(whole, (chunks - 1) * ranks + 2 * (ranks - 1 - rank))
    order = [action(number, True) for number in range(ahead)]
    for number in range(ahead, whole):
        order += [action(number, True), action(number - ahead, False)]
    return order + [action(number, False) for number in range(whole - ahead, whole)]


def breadth_first(rank: int, ranks: int, chunks: int, microbatches: int) -> list[Action]:
    """All micro-batches go through a chunk before the next one, and back."""
    places = [(chunk * ranks + rank, batch) for chunk in range(chunks) for batch in range(microbatches)]
    return [Action(*place, True) for place in places] + [Action(*place, False) for place in reversed(places)]


def interleaved(
    ranks: int,
    chunks: int,
    microbatches: int,
    work: Extra = none,
    steps: int = 12,
    sleeps: Extra = none,
    order: Callable[[int, int, int, int], list[Action]] = one_forward_one_backward,
    work_of_stage: Callable[[int], float] = lambda stage: 0.0,
    phases: bool = True,
    replicas: int = 1,
    one_group: bool = False,
) -> Trace:
    """``work`` is more for each micro-batch of a rank, ``work_of_stage`` of a stage; a backward takes twice the time.

    Without ``phases`` the computations leave no record, and marks say where steps end. With several ``replicas`` the
    ranks that hold the same stages meet before the update. ``one_group``: each pair of ranks has a group in which each
    rank numbers its sends and receives together, as NCCL does; else each direction has one, as the recorder writes it.
    """
    job, numbers = Job(ranks * replicas), _Numbers(one_group)
    for replica in range(replicas):
        members = range(replica, ranks * replicas, replicas)
        for place, rank in enumerate(members):
            for source, target in ((rank, members[(place + 1) % ranks]), (members[(place + 1) % ranks], rank)):
                if not one_group or source < target:
                    job.build.group([source, target], group=_subgroup(source, target), name=f"{source} to {target}")
    for step in range(steps):
        for rank in range(ranks * replicas):
            job.sleep(rank, sleeps(step, rank))
        for replica in range(replicas):
            members = range(replica, ranks * replicas, replicas)

            def length(place: int, action: Action, members: Sequence[int] = members, step: int = step) -> float:
                more = work(step, members[place]) + work_of_stage(action.stage)
                return FORWARD_MS + more if action.forward else BACKWARD_MS + 2 * more

            _pass_round(
                job,
                members,
                ranks * chunks,
                [order(r, ranks, chunks, microbatches) for r in range(ranks)],
                length,
                phases,
                numbers,
            )
        for place in range(ranks if replicas > 1 else 0):
            job.meet(range(place * replicas, (place + 1) * replicas), group=0x8000 + place)
        for rank in range(ranks * replicas):
            if phases:
                job.update(rank)
            else:
                job.now[rank] += MS
                job.build.rank(rank).step_mark(job.now[rank])
    numbers.number_by_rank(job)
    return job.trace()


def _pass_round(
    job: Job,
    ranks: Sequence[int],
    stages: int,
    orders: Sequence[Sequence[Action]],
    length: Callable[[int, Action], float],
    phases: bool,
    numbers: _Numbers,
) -> None:
    """Let each rank do its actions in order, as soon as what they need has been sent."""
    left: list[Iterator[Action]] = [iter(order) for order in orders]
    following = [next(own, None) for own in left]
    sent: dict[Action, int] = {}
    while any(following):
        moved = False
        for place, rank in enumerate(ranks):
            while (action := following[place]) is not None:
                needs = _needed(action, stages)
                if needs is not None and needs not in sent:
                    break
                if needs is not None and needs.stage != action.stage:
                    _hand_on(job, numbers, sent[needs], ranks[needs.stage % len(ranks)], rank)
                if phases:
                    job.compute(rank, length(place, action), "forward" if action.forward else "backward")
                else:
                    job.now[rank] += round(length(place, action) * MS)
                sent[action] = job.now[rank]
                if action.stage < stages - 1 if action.forward else action.stage > 0:
                    job.now[rank] += MS // 100  # the call of the send
                following[place], moved = next(left[place], None), True
        if not moved:
            raise RuntimeError("the ranks wait for each other for ever")


def _needed(action: Action, stages: int) -> Action | None:
    """Return what has to be done before an action, on whichever rank."""
    if action.forward:
        return action._replace(stage=action.stage - 1) if action.stage else None
    last = action.stage == stages - 1
    return action._replace(forward=True) if last else action._replace(stage=action.stage + 1)


def _subgroup(source: int, target: int) -> int:
    return 0x10000 + 256 * source + target


class _Numbers:
    """Groups of messages, and their numbers in them."""

    def __init__(self, one_group: bool) -> None:
        self.one_group = one_group
        self.made: dict[tuple[int, int], int] = {}

    def of(self, source: int, target: int) -> tuple[int, int, int, int]:
        """Return group and number of the next message, and the places of its target and its source in the group."""
        number = self.made[source, target] = self.made.get((source, target), -1) + 1
        if not self.one_group:
            return _subgroup(source, target), number, 1, 0
        group = _subgroup(min(source, target), max(source, target))
        return group, number, int(target > source), int(source > target)

    def number_by_rank(self, job: Job) -> None:
        """Number the sends and receives of each rank in a group in the order of its calls."""
        made: dict[tuple[int, int], int] = {}
        for row in sorted(job.build.rows["collectives"], key=lambda row: int(row["call_ns"])):
            if self.one_group and row["op_code"] in (CollectiveOp.SEND, CollectiveOp.RECEIVE):
                key = row["rank"], row["group_hash"]
                row["sequence"] = made[key] = made.get(key, -1) + 1


def _hand_on(job: Job, numbers: _Numbers, sent: int, source: int, target: int) -> None:
    """A message that left when it was made, whatever its sender has done since."""
    group, number, to, origin = numbers.of(source, target)
    end = max(sent, job.now[target]) + MS // 100
    job.build.collective(
        {source: (sent, sent + MS // 100)}, group=group, sequence=number, op=CollectiveOp.SEND, peer_rank=to
    )
    keys = job.build.collective(
        {target: (job.now[target], end)}, group=group, sequence=number, op=CollectiveOp.RECEIVE, peer_rank=origin
    )
    job.build.rank(target).collective_wait(keys[target], job.now[target], end)
    job.now[target] = end
