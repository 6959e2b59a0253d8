"""A run as Parquet files, one partition per rank."""

# SPDX-License-Identifier: Apache-2.0
