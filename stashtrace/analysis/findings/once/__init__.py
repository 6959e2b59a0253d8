"""What a job needs to do once: its start, and compilations, which it may do again and again."""

# SPDX-License-Identifier: Apache-2.0
