"""A Trace in, a Table out: one folder per question, one line of ``registry.ANALYSES`` per analysis."""

# SPDX-License-Identifier: Apache-2.0
