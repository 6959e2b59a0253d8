"""Which files were read and written, how, and what would help."""

# SPDX-License-Identifier: Apache-2.0
