"""What a backward pass sends, what that costs, and what other buckets would."""

# SPDX-License-Identifier: Apache-2.0
