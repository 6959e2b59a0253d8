"""What a record, a table, a column and a kind is."""

# SPDX-License-Identifier: Apache-2.0
