"""Changes of DataLoader workers: how many there are, whether epochs keep them, one that is slower than the others."""

# SPDX-License-Identifier: Apache-2.0
