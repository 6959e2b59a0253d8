"""What is worth a line and a window while a job runs, and the command of the user that is called for it."""

# SPDX-License-Identifier: Apache-2.0
