"""What changed between two jobs, of one run or several each, and how sure that is."""

# SPDX-License-Identifier: Apache-2.0
