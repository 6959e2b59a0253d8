"""Read and write ``.stash`` files as arrays."""

# SPDX-License-Identifier: Apache-2.0
