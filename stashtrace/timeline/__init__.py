"""A Trace -> one timeline for the Perfetto UI, and its viewer. Binds to the loopback interface and nothing else."""

# SPDX-License-Identifier: Apache-2.0
