"""Who was late, why, and who waited for it."""

# SPDX-License-Identifier: Apache-2.0
