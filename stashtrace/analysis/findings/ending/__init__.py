"""How a job ended: what it failed of, where it stood still, and what its ranks did last."""

# SPDX-License-Identifier: Apache-2.0
