"""What is worth a line and a window while a job runs."""

# SPDX-License-Identifier: Apache-2.0
