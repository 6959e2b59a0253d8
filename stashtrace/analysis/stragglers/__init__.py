"""Late ranks: which rank was late, why, and which ranks waited for it."""

# SPDX-License-Identifier: Apache-2.0
