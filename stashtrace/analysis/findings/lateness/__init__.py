"""Claims about waits for late ranks: whose work makes them (``culprits``, ``uneven_steps``), and ``pipeline_claims``.

A rank is named only where it stands out of what steps vary (``step_noise``). ``costliest_wait`` has the longest single
wait.
"""

# SPDX-License-Identifier: Apache-2.0
