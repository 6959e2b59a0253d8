"""Lengths of sentences, and what is worth a word in them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of the words about causes, findings and waits, each with its reason."""

    #: Longest headline; a clause of fewer characters says too little alone.
    headline_characters: int = 100
    #: On a screen a headline has two lines, and the first may be shorter by the length of a word that did not fit.
    long_word_characters: int = 16
    clause_characters: int = 30
    #: What is this part of a time prints as nearly all of it: it is not said to be a part.
    nearly_all_ratio: float = 0.9
    #: A surplus of more than this many times the lateness was partly made up for by less of something else: it is not
    #: a reason alone.
    exceeds_times: float = 2.0
    #: From this part of a time on, its part prints as all of it.
    whole_ratio: float = 0.95
    #: A saving that is larger than the time it is about by more than this part is no matter of rounding.
    clearly_more_ratio: float = 0.05
    #: Characters of a name in a sentence.
    name_characters: int = 40
    #: Transfers of less take as long as the operation does, whatever their bytes: gloo's and NCCL's latency over
    #: bandwidth.
    small_bytes: int = 1 << 16


POLICY = Policy()
