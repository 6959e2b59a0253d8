"""Code inside the job: Python's half of the recorder. Needs the standard library and ``libstashtrace.so`` alone."""

# SPDX-License-Identifier: Apache-2.0
