"""Looking at a trace in the Perfetto UI. Called by the CLI; binds to the loopback interface and nothing else."""

# SPDX-License-Identifier: Apache-2.0
