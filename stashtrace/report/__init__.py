"""One page about a run, to share: facts of the run -> HTML without network, or Markdown.

    trace -> document (a document of plain values) -> page/ (HTML)  |  page/markdown
                                                -> the same document as JSON inside the page

``document`` collects the parts; ``budget_groups``, ``steps_over_time``, ``flames``, ``costliest_waits`` and ``machine``
each make some of them. What is shown is read from the document alone, so the page and its JSON cannot differ.
"""
