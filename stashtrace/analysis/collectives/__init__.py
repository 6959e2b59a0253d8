"""Collectives matched across ranks: who waited, what was transferred."""

# SPDX-License-Identifier: Apache-2.0
