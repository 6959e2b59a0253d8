"""All times of following a run. Most count rounds: a follower reads, reports and answers once a round."""

from __future__ import annotations

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS

# A round ---------------------------------------------------------------------------------------------------------

#: Time between two rounds: at least; at most while steps close; at most while none do, as something may be wrong.
LEAST_ROUND_S, ROUND_S, QUIET_ROUND_S = 1.0, 10.0, 4.0
ROUND_NS, QUIET_ROUND_NS = round(ROUND_S * SECOND_NS), round(QUIET_ROUND_S * SECOND_NS)
#: A host is silent, and its state old, after this number of rounds without a newer one.
SILENT_ROUNDS = 3
SILENT_NS = SILENT_ROUNDS * ROUND_NS

# What a job does -------------------------------------------------------------------------------------------------

#: How long before it is waited for a batch may have been made: steps of that time stay in memory.
CONTEXT_NS = MINUTE_NS
#: Calls that block may be longer than many short steps: steps of this time before the open ones always stay.
LEAST_CONTEXT_NS = 2 * SECOND_NS
#: Samplers write several times a second while a process lives: steps close without one that is silent for this time.
PROCESS_SILENT_NS = ROUND_NS
#: A process that lives and is silent for the first time has stopped recording, if others wrote within the second.
STOPPED_NS, RECENT_NS = 15 * SECOND_NS, 5 * SECOND_NS
#: How long others make steps without a rank that has ended in order, before it counts as lost.
ENDED_EARLY_NS = ROUND_NS
#: Time without the end of a step before processes are examined, and between two such examinations.
QUIET_NS, PEEKS_APART_NS = QUIET_ROUND_NS, 2 * QUIET_ROUND_NS
#: A wait for ranks that are not seen is worth a line from this length on: checkpoints take as long.
LONG_WAIT_NS = SILENT_NS
#: The view says that no step has ended after this time, and after this number of the newest steps.
VIEW_QUIET_NS, VIEW_QUIET_STEPS = ROUND_NS, 5
#: Verdicts cost more than the budget of a round: they are made again after this time.
VERDICTS_S = 15.0
#: A run that other hosts record and nobody follows is read again after this time; for as long its files show it alive.
AGAIN_S = SILENT_ROUNDS * ROUND_S

# Other hosts -----------------------------------------------------------------------------------------------------

#: The time they have to read a shared row.
READ_WITHIN_NS = 12 * ROUND_NS
#: When the job has ended: the time for what other hosts still share, and then for their parts of windows.
LAST_WORDS_S, LAST_PARTS_S = 1.5 * ROUND_S, 2 * QUIET_ROUND_S
LAST_WORDS_APART_S = 0.3
#: A slow step of a rank of another host is left to that host for this time: a round, and what a step takes to close.
LEFT_NS = ROUND_NS + 2 * SECOND_NS
#: A trigger that another host reported is ignored for this time.
REPORTED_NS = 12 * ROUND_NS

# Windows ---------------------------------------------------------------------------------------------------------

#: How long steps that do not come are awaited; and in all, however often a window is asked for meanwhile.
PATIENCE_NS = MINUTE_NS
LONGEST_WINDOW_NS = 10 * PATIENCE_NS
#: Between two windows of triggers.
WINDOWS_APART_NS = MINUTE_NS
#: Once this host has sealed its part, the time others have for theirs; and where no step is to come.
PARTS_NS, PARTS_NOW_NS = 2 * ROUND_NS, QUIET_ROUND_NS
#: A host puts a window together in a moment. Another one takes its place this long after it has begun; and in all.
TAKEN_NS, COLLECTOR_NS = PATIENCE_NS, 2 * PATIENCE_NS
#: How long a follower is silent before a window goes on without it, and before somebody who asks it gives up.
PART_SILENT_NS, ASKED_SILENT_NS = ROUND_NS, SILENT_NS
#: How often somebody who asks polls for the answer.
ANSWER_POLL_S = 0.2
#: In an idle run, the reported begin of a rank's first step and the mark that begins it are readings of two clocks.
CLOCKS_APART_NS = SECOND_NS // 1000

# Deeper steps, and the command of the user -----------------------------------------------------------------------

#: The recorder writes kernels within a second or two after the last deeper step.
KERNELS_NS = 5 * SECOND_NS
#: A rank that makes no steps, or very long ones, is given up this long after its time was over.
DEEPER_NS = MINUTE_NS
#: A call of the command is killed after the first time; when the job has ended, all that are left have the second.
CALL_S, LAST_CALLS_S = 60.0, 10.0
CALL_POLL_S = 0.05

# Metrics ---------------------------------------------------------------------------------------------------------

#: A file of metrics that was not replaced for this time belongs to a run that was killed.
ABANDONED_S = 60 * ROUND_S
#: Between two pushes, where OTEL_METRIC_EXPORT_INTERVAL does not say it; and for the last ones when the job has ended.
PUSH_S, LAST_PUSH_S = 15.0, 5.0
#: The most time of a connection, of its silence, and between two polls of it.
CONNECTION_S, CONNECTION_SILENT_S, CONNECTION_POLL_S = 10.0, 5.0, 0.5
