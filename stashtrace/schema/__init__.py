"""What a record, a table, a column and a kind is, and how rows are grouped."""

# SPDX-License-Identifier: Apache-2.0
