"""Measure what the links of a machine can do."""

# SPDX-License-Identifier: Apache-2.0
