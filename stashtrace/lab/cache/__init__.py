"""Step time against the cached share of the data."""

# SPDX-License-Identifier: Apache-2.0
