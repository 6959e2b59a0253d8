"""Which instances to rent for a job."""

# SPDX-License-Identifier: Apache-2.0
