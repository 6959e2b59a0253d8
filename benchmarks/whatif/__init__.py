"""Pairs of jobs, one the other with something changed, and what ``stashtrace whatif`` predicts of each from the other.

``bench_whatif.py`` next to this folder is the program.
"""

# SPDX-License-Identifier: Apache-2.0
