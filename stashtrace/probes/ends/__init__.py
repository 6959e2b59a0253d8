"""How processes end: exceptions that nothing catches, and the exit codes and signals of children."""

# SPDX-License-Identifier: Apache-2.0
