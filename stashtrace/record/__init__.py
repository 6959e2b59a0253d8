"""Start a job with the recorder in it and watch it; look at the machine."""
# SPDX-License-Identifier: Apache-2.0
