"""Thresholds of the rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """From which figure on a rule says something, each with its reason."""

    # Stalls: where the time of a step went.

    #: Shares of the step: less than the first is what steps vary by; a bound of time that may be 0 is worth the doubt
    #: from the second on.
    worth_saying_ratio: float = 0.03
    worth_doubting_ratio: float = 0.2
    #: A bound nearer to the point than this prints as nearly the same figure: it counts as the point.
    exact_ratio: float = 0.05
    #: Without a stall, the stalls that are not said add up to less than the rest.
    compute_bound_ratio: float = 0.9
    #: Ranks that lose less than this part of what the worst one loses have a separate claim: one figure cannot
    #: stand for both.
    like_ratio: float = 0.5
    #: What is more than half of a time is its cause, and what most steps have is said of them; from the second part on
    #: it prints as all of it.
    mostly_ratio: float = 0.5
    whole_ratio: float = 0.95
    #: Parts of a time, of a start or of the making of a batch, below this share are not why it is long.
    part_ratio: float = 0.05
    #: Waiting for batches is what bounds a rank from a quarter of its step on.
    input_bound_ratio: float = 0.25
    #: Blocked reads, and calls that block on a device explain nothing of a time that they do not
    #: cover a quarter of.
    explains_ratio: float = 0.25
    #: The mean of batches, or of workers, says little where it is this many times another figure of them.
    uneven_ratio: float = 1.5
    #: Up to this number of batches per step it is one.
    one_each_ratio: float = 1.05
    #: The calls that block a rank are looked up if they are at least this share of its steps.
    blocked_examined_ratio: float = 0.01

    # Steps.

    #: A median further than this from the mean says that a few steps are much longer or shorter than the others.
    skewed_ratio: float = 0.1
    #: Steps of this number of backward passes accumulate gradients, or train several models.
    several_passes_count: float = 1.5
    #: Ranks of a job that was stopped may be a step apart.
    uneven_count: int = 1
    #: Slow steps are said if what they take longer is this part of all steps.
    slow_ratio: float = 0.01

    # CPUs, the machine, how far to trust it.

    #: Shares of the step in which a step thread waits for a CPU: less than the first is what a scheduler makes of any
    #: job, and from the second on no other figure of the step means much.
    contention_noted_ratio: float = 0.05
    contention_verdict_ratio: float = 0.2
    #: A column of the budget with less of these waits than this is not named with the others.
    contention_part_ratio: float = 0.1
    #: A thread that could run for less of the time only starts others, or waits for them.
    busy_thread_ratio: float = 0.1
    #: Workers that are fewer of the threads that could run are not why the others wait.
    workers_of_threads_ratio: float = 0.2
    #: Other programs that use less of what is wanted beyond the CPUs would, gone, leave most of the waiting.
    others_of_excess_ratio: float = 0.5
    #: Other programs that use less of the CPUs are not why somebody waits for one.
    others_hold_ratio: float = 0.2
    #: Other programs are named from this part of the CPUs on: daemons of any host use less.
    others_named_ratio: float = 0.05
    #: On average over waits and bursts, CPUs that threads could use for this part have none to spare.
    cpus_taken_ratio: float = 0.8
    #: CPUs that are idle for this part of the time while threads wait are CPUs that these may not use.
    cpus_idle_ratio: float = 0.3
    #: Unexplained time of more than the first share of the steps may be any of the stalls that are named; kinds of it
    #: below the second, which prints as 0 %, are not named.
    unexplained_ratio: float = 0.05
    doubt_ratio: float = 0.00995
    #: A hypervisor that takes less than this of a host's CPUs moves no figure of a step by more than its noise.
    steal_ratio: float = 0.02
    #: Work that the step hides for less than this share of it is no stall if the step becomes faster.
    hidden_ratio: float = 0.01
    #: A loss of more than this share of all records moves sums of times by the size of small stalls.
    records_lost_ratio: float = 0.01
    #: Opens, closes and look-ups are named from this share of the time in I/O on: in files that are read, it is less.
    look_ups_ratio: float = 0.25
    #: Cost of one record of a native hook, from benchmarks/results; the same if the job has emptied the caches between
    #: two calls: two stamps, a row and their code come from memory.
    hook_ns: int = 40
    hook_most_ns: int = 150
    #: Largest cost of a probe relative to its own account: the job fetches again what the probe evicted from caches.
    probe_most_ratio: float = 3.0
    #: Largest cost of a wake-up of a recorder thread: two switches, and a core's second-level cache to fill again.
    wake_most_ns: int = 50_000

    # Lengths.

    #: As many as a sentence, or a block of a page, can hold; the others are counted.
    named_count: int = 3
    step_counts_named_count: int = 4
    hosts_named_count: int = 8
    ranks_of_host_characters: int = 40
    missing_ranks_characters: int = 20
    #: As many parts of a time as a block of a page can hold.
    names_count: int = 2
    #: Characters of a name in a sentence, and in the first line.
    name_characters: int = 40
    short_name_characters: int = 24
    path_characters: int = 48


POLICY = Policy()
