"""Messages of a backward pass, their cost, and the cost of other buckets."""

# SPDX-License-Identifier: Apache-2.0
