"""Bytes of a ``.stash`` file <-> arrays."""

# SPDX-License-Identifier: Apache-2.0
