"""Analyses: pure functions, Trace in, Table out. Each is one file and one line in ``registry.ANALYSES``."""

# SPDX-License-Identifier: Apache-2.0
