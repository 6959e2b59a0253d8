"""Where the time of a verdict was spent: on which file, in which line of the user's code."""

# SPDX-License-Identifier: Apache-2.0
