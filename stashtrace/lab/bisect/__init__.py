"""Find the commit that made a job slower: `git bisect`, each commit judged by runs that take turns with the good one."""

# SPDX-License-Identifier: Apache-2.0
