"""Jobs and traces with planted causes, and whether a summary names the cause, the rank and the amount.

    jobs (run, each rank with a stopwatch) or foreign (made-up traces) -> truth -> judge -> a page

``scripts`` are separate programs and know nothing of stashtrace. The words that are accepted for a cause are those
of the field, not those of the summary: see ``words``.
"""
# SPDX-License-Identifier: Apache-2.0
