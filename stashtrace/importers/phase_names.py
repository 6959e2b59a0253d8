"""Names of ranges and annotations that several profilers show alike, and what they mean. Shared by the importers."""

from __future__ import annotations

import re

#: ``save_checkpoint``, ``Checkpoint``, ``Trainer.save_checkpoint``, ``checkpoint_save``: a range around a checkpoint
#: that is written. Loading one, or checkpoints of activations, have other names.
CHECKPOINT = re.compile(
    r"^(?:\w+(?:\.|::))*_?(?:sav(?:e|ing)[ _-]?)?(?:checkpoint|ckpt)(?:[ _-]?sav(?:e|ing))?$", re.IGNORECASE
)
