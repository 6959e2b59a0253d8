"""One page about a run, to share: facts of the run -> HTML without network, or Markdown.

    trace -> document (a document of plain values) -> page/ (HTML)  |  page/markdown
                                                -> the same document as JSON inside the page

``document`` collects the parts; ``budget_groups``, ``stalls_by_rank_and_step``, ``costliest_waits``, ``slow_steps``,
``links`` and ``machine`` each make a part of it. What is shown is read from the document alone, so the page and its
JSON cannot differ.
"""

# SPDX-License-Identifier: Apache-2.0
