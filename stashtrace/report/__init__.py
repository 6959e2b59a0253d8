"""One page about a run, to share: facts of the run -> HTML without network, or Markdown.

    trace -> facts (a document of plain values) -> page/ (HTML)  |  page/markdown
                                                -> the same document as JSON inside the page

``facts`` collects the document; ``budget``, ``heat``, ``waits``, ``slow``, ``links`` and ``machine`` each make a part
of it. What is shown is read from the document alone, so the page and its JSON cannot differ.
"""

# SPDX-License-Identifier: Apache-2.0
