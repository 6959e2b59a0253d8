"""Decoders: the rows that one collector wrote -> event tables. One file per collector, by its name."""

# SPDX-License-Identifier: Apache-2.0
