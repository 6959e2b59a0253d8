"""Paths -> a Trace: whose each file is, one clock for all, what is missing."""

# SPDX-License-Identifier: Apache-2.0
