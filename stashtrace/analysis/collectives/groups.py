"""Which parallelism a process group serves: by the words in its name, else only what its members look like."""

from __future__ import annotations

import re

import numpy as np

from stashtrace.analysis.collectives.matching import group_table, places
from stashtrace.schema.trace import Trace

#: Words of a group's name -> kind. torch names the groups of a mesh mesh_NAME; Megatron spells its groups out.
_WORDS = (
    ("fsdp", ("fsdp", "hsdp", "shard")),
    ("ep", ("ep", "expert", "experts", "moe", "etp", "edp")),
    ("tp", ("tp", "tensor", "mp", "sp", "sequence")),
    ("pp", ("pp", "pipe", "pipeline", "stage")),
    ("dp", ("dp", "data", "ddp", "replicate", "replica")),
    ("cp", ("cp", "context")),
)


def kind_by_name(name: str) -> str:
    """Kind that a group's name tells, empty if it tells none.

    Examples
    --------
    >>> kind_by_name("mesh_tp"), kind_by_name("PIPELINE_MODEL_PARALLEL_GROUP"), kind_by_name("default_pg")
    ('tp', 'pp', '')
    >>> kind_by_name("DATA_PARALLEL_GROUP_WITH_CP"), kind_by_name("mesh_cp")
    ('dp', 'cp')
    """
    words = set(re.findall(r"[a-z]+", name.lower()))
    return next((kind for kind, known in _WORDS if words.intersection(known)), "")


def group_kinds(trace: Trace) -> dict[int, str]:
    """Group hash -> kind: by its name, else ``all`` ranks, a ``block``, every n-th (``stride``), ``some``."""
    names = dict(zip(trace.groups["group_hash"].tolist(), trace.groups["name_code"].tolist(), strict=True))
    world = max(int(trace.processes["world_size"].max(initial=0)), len(trace.ranks))
    return {
        value: kind_by_name(trace.text(names[value]) if value in names else "") or _shape(group.members.tolist(), world)
        for value, group in group_table(trace).items()
    }


def _shape(members: list[int], world: int) -> str:
    if len(members) >= world:
        return "all"
    apart = np.unique(np.diff(np.sort(members)))
    if len(apart) == 1:
        return "block" if apart[0] == 1 else "stride"
    return "some"


def link_names(trace: Trace) -> dict[int, str]:
    """Group hash -> the host in which it moves its bytes, or the hosts that it joins."""
    of_ranks = places(trace)
    names = {}
    for value, group in group_table(trace).items():
        hosts = sorted({trace.text(of_ranks[m][0]) for m in group.members.tolist() if m in of_ranks} - {""})
        names[value] = ", ".join(hosts) if len(hosts) < 4 else f"{len(hosts)} hosts"
    return names
