"""Thresholds of predictions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """From which figure on a prediction is made, doubted or said, each with its reason."""

    # Predictions.

    #: Changes are not predicted from a replay with a larger error, or with more time that no edge explains.
    most_error_ratio: float = 0.06
    most_gap_ratio: float = 0.05
    #: A single change is listed if it saves at least this part of the step.
    worth_saving_ratio: float = 0.005
    #: The part of the work that runs apart from the nodes is found to this part.
    apart_precision_ratio: float = 0.125
    #: Of the steps, by their length, those up to this part are quick ones.
    quick_steps_quantile: float = 0.25
    #: Of several numbers of workers the least is taken whose step is at most this part of the run's step longer than
    #: that of the best number.
    workers_suffice_ratio: float = 0.02
    #: Stalls below this part of the step are not a bottleneck.
    bottleneck_ratio: float = 0.03
    #: Where a change makes transfers lose more or less time to others on their links, this part of the difference is
    #: in doubt, but no more than this part of the step.
    company_doubt_ratio: float = 0.15
    most_doubt_ratio: float = 0.08

    # Intervals.

    #: Waits for storage of several recordings of one job differ by this: in six of two jobs by 6 % and 12 % (standard
    #: deviation).
    storage_between_ratio: float = 0.1
    #: Neighbouring steps are similar: up to this many in a row count as one, if this many groups of them are left.
    block_steps: int = 5
    blocks_count: int = 8
    #: Where steps are too few to show their scatter, each is taken to be this part of a step away from the mean: two
    #: of three recordings of a job scatter less.
    one_step_ratio: float = 0.1
    #: A step is one of the long ones if it is this part of the longest; this many of them show a period.
    long_step_ratio: float = 0.3
    period_times_count: int = 3
    #: Standard errors on each side of what is predicted.
    standard_errors: float = 2.0
    #: This part of contention that a change makes or takes away may be wrong on either side.
    contention_doubt_ratio: float = 0.25

    # Lengths that a change gives to work.

    #: A batch that a waiting thread gets later than this after it was made was held back by its worker.
    held_back_ns: int = 1_000_000
    #: No more than this many times the recorded ranks are predicted.
    farthest_times: int = 32
    #: Latency can be distinguished from bandwidth if the largest message is this many times the smallest one.
    sizes_apart_times: float = 4.0
    #: Fewer transfers of one kind of operation show nothing about it.
    fewest_transfers_count: int = 3
    #: This part of the transfers of a size is as quick as the link allows.
    quick_transfers_ratio: float = 0.1
    #: Messages up to this size are all latency.
    latency_only_bytes: int = 64
    #: A hop of one operation takes at most this many times as long as a hop of another.
    hops_apart_times: float = 2.0
    #: Smaller transfers are not gradients, and are not compressed.
    least_gradient_bytes: int = 1024
    #: Most that a CPU takes to convert a byte of four-byte numbers into two-byte ones, and back.
    cpu_converts_ns_per_byte: float = 1.0
    #: The same of a device: its memory is read and written three times, at 100 GB/s or more, by two short kernels.
    device_converts_ns_per_byte: float = 3 / 100
    device_converts_ns: float = 10_000.0

    # Links and CPUs that are shared.

    #: Transfers with the most company are compared with those with the least: this part of the range at either end.
    company_ends_ratio: float = 1 / 3
    #: Sharing must make the former slower by at least this factor (as a logarithm), else they show nothing.
    least_slower_log: float = 0.2
    #: Two medians of one kind of transfer differ by this without a reason.
    by_chance_ratio: float = 0.02
    #: Other processes that use less than this of a CPU slow nothing down.
    used_by_others_cpus: float = 0.25
    #: What a job does outside its nodes never takes more of the CPUs that are left for these.
    least_left_ratio: float = 0.25

    # A straggler removed.

    #: A transfer whose members come within this time was entered together.
    entered_together_ns: int = 1_000_000
    #: A thread that wakes up waits no longer than this for its turn.
    thread_turn_ns: int = 3_000_000
    #: With more ranks than this, the median of all stands for the median of all others.
    many_ranks_count: int = 32
    #: With more cells than this of ranks, steps and collectives, what a rank does longer is taken from all of its
    #: step.
    most_cells_count: int = 4_000_000
    #: This part of the transfers of a size waited for no thread.
    unwaited_ratio: float = 0.1

    # Causes of a slow-down.

    #: At most this many causes of each kind are replayed: those whose work exceeds that of their peers most.
    replayed_causes_count: int = 64
    #: The slowest ranks are this part of all, as in the study.
    slowest_ranks_ratio: float = 0.03
    #: A job that loses less than this part of its step has no causes.
    least_lost_ratio: float = 1e-3

    # Sizes of buckets.

    #: Sizes that are replayed to find the best one.
    replayed_sizes_count: int = 4

    # Model of communication.

    #: A message that begins this soon after the one before waited for it: its ready time is unknown.
    queued_ns: int = 20_000
    #: Passes that a forecast of buckets takes; a median needs no more.
    forecast_passes_count: int = 200
    #: Passes in which the best of many buckets is searched.
    searched_passes_count: int = 20
    #: Other buckets are better if they expose less by this part.
    worth_rebucketing_ratio: float = 0.02

    # Overlap of messages and computing.

    #: Messages of a pass that may be smaller than its buckets: torch's first bucket, and the last one.
    smaller_messages_count: int = 2
    #: A cap of this part of the run's is the same cap, written with fewer digits.
    same_cap_ratio: float = 0.999
    #: A pass is divided into no more messages than this.
    most_buckets_count: int = 1_000_000
    #: Caps that are tried; if there are more, some with even ratios are chosen.
    tried_caps_count: int = 64

    # Loaders.

    #: Kept workers are asked to go on, and answer. Two ranks on two CPUs waited 0.7 to 5.6 ms for that. At worst it
    #: is taken to be this long, or as long as the run's messages between these processes if they take longer.
    workers_answer_ns: int = 1_000_000

    #: A batch that begins later than this after it was asked for was delayed by something else, such as the end of a
    #: pass.
    asked_ns: int = 5_000_000

    # A slow worker.

    #: A worker differs from the others if its mean batch does by this many standard errors, and by this part.
    worker_differs_errors: float = 4.0
    worker_differs_ratio: float = 0.1
    #: Fewer batches of a worker do not say how quick it is.
    fewest_batches_count: int = 3

    # What is worth a word.

    #: Sizes of an operation that the page shows; JSON has all.
    shown_sizes_count: int = 16
    #: A model whose error is no more than this part is good: the error is not said.
    good_error_ratio: float = 0.1
    #: A cause is named if it alone causes this part of the loss. The smallest one is named that causes nearly what
    #: the largest: at least this part of it.
    cause_alone_ratio: float = 0.3
    cause_nearly_ratio: float = 0.95
    #: Parts of a step that are worth a row of the budget, and a sentence.
    row_ratio: float = 0.005
    sentence_ratio: float = 0.1
    #: A smaller saving counts as none.
    no_saving_ratio: float = 0.0005
    #: Groups that a sentence names, and the share below which one is not worth a name.
    named_groups_count: int = 3
    named_group_ratio: float = 0.01
    #: Share of its kind from which a rank or an operation is named alone; share of steps above which an order is
    #: usual.
    majority_ratio: float = 0.5


POLICY = Policy()
