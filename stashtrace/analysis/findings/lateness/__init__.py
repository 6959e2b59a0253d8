"""Claims about waits for late ranks: whose work makes them (``culprits``, ``unlike``), and pipelines (``staging``).

A rank is named only where it stands out of what steps vary (``noise``). ``costliest`` has the longest single wait.
"""

# SPDX-License-Identifier: Apache-2.0
