"""Waits for late ranks: at which ranks they end (``late_claims``), and the longest one (``costliest_wait``)."""

# SPDX-License-Identifier: Apache-2.0
