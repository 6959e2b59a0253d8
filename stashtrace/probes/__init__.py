"""Code inside the job: Python's half of the recorder. Standard library alone."""

# SPDX-License-Identifier: Apache-2.0
"""What runs inside the user's Python processes: standard library and ``stashtrace._native`` only."""

# SPDX-License-Identifier: Apache-2.0
