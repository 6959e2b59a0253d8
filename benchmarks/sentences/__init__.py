"""The bench of sentences: jobs and traces whose facts are known, and what a summary claims of them.

    cases -> jobs (recorded, each with its clock) or foreign traces -> truth -> check -> a table

``jobs`` is run by the bench as a separate program and knows nothing of stashtrace.
"""
# SPDX-License-Identifier: Apache-2.0
