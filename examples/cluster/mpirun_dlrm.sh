#!/bin/bash
# A DLRM-style job: one process a rank, started by mpirun on the hosts of a file. Each rank has a separate launcher;
# they recognise each other by the id of the MPI job (MPICH and Intel MPI give none: --run-id).
#
#   HOSTS=hosts.txt examples/cluster/mpirun_dlrm.sh 16 python dlrm_s_pytorch.py --dist-backend=nccl ...
set -eu
ranks=$1
shift
runs=${RUNS:-$PWD/runs} # on a file system that all hosts see
name=dlrm-$(date +%m%d-%H%M%S)
mpirun -n "$ranks" ${HOSTS:+--hostfile "$HOSTS"} \
  stashtrace run --out "$runs/$name" --run-id "$name" -- "$@"
