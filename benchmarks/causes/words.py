"""The words that a person would accept for a cause. They were fixed before any summary of the members was read."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

#: Kind of a cause -> pattern of which one match in a verdict names it.
WORDS = {
    "sleep": r"\basleep\b|\bsleep(s|ing)?\b",
    "read": r"\breads?\b|\breading\b",
    "write": r"\bwrit(e|es|ing|ten)\b|\bfsync\b",
    "commit": r"\bwrit(e|es|ing|ten)\b|\bfsync\b|\bfdatasync\b|\bcommit(s|ting)?\b",
    "garbage": r"\bgarbage\b|\bgc\b",
    "python": r"\bPython\b|between operators|outside (of )?(its |the )?operators|\b(own|user) code\b|tokenize_text",
    "compute": r"\bcomput(e|es|ing|ation)\b|\bforward\b|\bbackward\b|\bkernels?\b|\boperators?\b",
    "batches": r"\bbatch(es)?\b|\binput[- ]bound\b|\bDataLoader\b",
    "workers": r"\bworkers?\b",
    "restart": r"\b(start|restart|creat|launch|fork)\w*\b[^.;]*\bworkers?\b"
    r"|\bworkers?\b[^.;]*\b(start|restart|creat|anew)\w*\b|persistent_workers",
    "socket": r"\bsockets?\b|\brecv\b|\bserver\b|\bconnection\b|\bremote\b|\breceiv(e|es|ing)\b",
    "lock": r"\block\b|\banother thread\b|\bblocked\b",
    "save": r"\bcheckpoints?\b|\bsav(e|es|ing)\b",
    "link": r"\btransfers?\b|\bnetwork\b|\blinks?\b|\bbandwidth\b",
    "skew": r"\bmore (data|bytes|rows|tokens|work)\b|\buneven\b|\bskew(ed)?\b|\bimbalanced?\b|\bcomput(e|es|ing)\b",
    "copy": r"\bcop(y|ies|ying)\b|\b(cuda|hip)?[Mm]emcpy",
    "launch": r"\blaunch(es|ed|ing)?\b|\bhost Python\b|\bhosts?\b",
    "sync": r"\bsynchroni[sz]\w*|\bblocking calls?\b|\bdrain(s|ed)?\b|Synchronize",
    "died": r"\bexceptions?\b|ValueError|\braised\b|\bdied\b|exit code 1\b|ended with code 1\b",
    "hung": r"\bhangs?\b|\bhung\b|\bstuck\b|\bnever (entered|called|arrived)\b|\bnot entered\b",
    "mismatch": r"\bmismatch\w*|\bdiffer(ent|s)?\b|\bnot the same\b|\bagainst\b|\bwhile rank\b",
    "fewer_steps": r"\b(fewer|more) steps\b|\buneven\b|\b(50|80) (and|to|against|of) (50|80)\b"
    r"|\bsteps\b[^.;]*\b(of|on) rank",
    "optimizer": r"\boptimi[sz]er\b|\bupdates?\b",
    "unknown": r"\bnot known\b|\bunknown\b|\bnot recorded\b|\bcannot\b|\binvisible\b|\bno(t| known) \w+ cause\b",
}

#: Who says this names no cause, whatever else it says.
NO_CAUSE = r"\bno known cause\b|\bunexplained\b"

#: Sentences that are false of each member of a sort.
NO_LOADER = (r"\binput[- ]bound\b", r"waiting for batches", r"workers left no records", r"num_workers")
#: Of a rank that is late in each step.
STEADY = (r"\blate in some steps, early in others\b",)
NOT_COMPUTE = (r"\bcompute bound\b",)

#: What the ranks of a pipeline are called.
STAGE = r"\bstages?\b"
#: In a made-up pipeline a rank waits where it receives, never where it sends.
NO_WAITING_SENDS = (r"\bin send for\b",)

#: Shapes of a cause over the steps.
EVERY = r"\bevery (other |\d+(st|nd|rd|th)?\b)|\beach \d+(st|nd|rd|th)\b|\bperiod\w*|\b1 (step )?(in|of) \d+\b"
FROM = r"\bfrom step \d+|\bsince step \d+|\bafter step \d+|\bchang(e|es|ed)\b[^.;]*\bstep \d+"
UNTIL = r"\b(until|up to|before) step \d+|\bfrom step \d+ on\b[^.;]*\b(no|less|shorter|faster)\b|\bfirst \d+ steps\b"
GROWS = (
    r"\bgrow(s|n|ing)?\b|\bdrifts?\b|\brises?\b|\bincreas(e|es|ed|ing)\b|\blonger and longer\b"
    r"|\bfrom [^.;]* to [^.;]*ms\b"
)
TURNS = r"\balternat\w*|\bin turns?\b|\btakes? turns\b|\bone after the other\b"
