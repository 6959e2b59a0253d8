"""Programs of our own that run jobs to measure a machine. Heavy imports stand in their workers only."""

# SPDX-License-Identifier: Apache-2.0
