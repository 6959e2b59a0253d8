"""Files that were read and written, the pattern of access, and advice."""

# SPDX-License-Identifier: Apache-2.0
