#!/bin/bash
# TaskProlog of a site: every job of every user records itself. Slurm runs it as the user before each task, and takes
# each line "export NAME=value" of its output into the environment of the task.
#
#   slurm.conf: TaskProlog=/etc/slurm/stashtrace_task_prolog.sh
#
# A user opts out by STASHTRACE_SITE=0. Whatever goes wrong here, the job starts.
stashtrace=${STASHTRACE_SITE_COMMAND:-/opt/stashtrace/bin/stashtrace}
runs=${STASHTRACE_SITE_RUNS:-/shared/stashtrace} # all nodes see it; mode 1777

[ "${STASHTRACE_SITE:-1}" = 0 ] && exit 0
timeout 30 "$stashtrace" env --format slurm --out "$runs/$SLURM_JOB_ID" 2>/dev/null
exit 0
