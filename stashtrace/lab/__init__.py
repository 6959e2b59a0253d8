"""Experiments: programs of our own that are run to measure a machine. Heavy imports stand in their workers only."""

# SPDX-License-Identifier: Apache-2.0
