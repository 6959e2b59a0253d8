#!/bin/bash
# EpilogSlurmctld of a site: one line of what slowed the job down, in its AdminComment, which `sacct -o AdminComment`
# shows. It needs slurmdbd: scontrol refuses to change a job that has ended.
#
#   slurm.conf: EpilogSlurmctld=/etc/slurm/stashtrace_epilog.sh
#
# The records belong to the user and are read as that user.
stashtrace=${STASHTRACE_SITE_COMMAND:-/opt/stashtrace/bin/stashtrace}
runs=${STASHTRACE_SITE_RUNS:-/shared/stashtrace}

run=$runs/$SLURM_JOB_ID
[ -d "$run" ] || exit 0
as_user() {
  if [ "$(id -un)" = "$SLURM_JOB_USER" ]; then "$@"; else runuser -u "$SLURM_JOB_USER" -- "$@"; fi
}
as_user timeout 600 "$stashtrace" merge "$run" >/dev/null 2>&1
line=$(as_user timeout 120 "$stashtrace" summary "$run" --format line 2>/dev/null) || exit 0
sacctmgr --immediate --quiet update job where jobid="$SLURM_JOB_ID" set AdminComment="stashtrace: $line ($run)"
exit 0
