"""Five measurements of a job, and the stalls that their differences are."""

# SPDX-License-Identifier: Apache-2.0
