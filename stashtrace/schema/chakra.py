"""The message definition of Chakra execution traces, for the importer and the exporter.

A file is a ``GlobalMetadata`` message and then one ``Node`` message after the other, each after its length as a
varint. Names and numbers are those of ``schema/protobuf/et_def.proto`` of mlcommons/chakra, package
``ChakraProtoMsg``, version 0.0.4. What is not declared here (lists as values, tensors, storage operations) is skipped
by readers, as protobuf has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stashtrace.schema.kinds import CollectiveOp

PACKAGE = "ChakraProtoMsg"
SCHEMA_VERSION = "0.0.4"


class NodeType(IntEnum):
    """What a node is."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7
    STORAGE_NODE = 8
    BATCH_NODE = 9
    CHECKPOINT_NODE = 10


class CollectiveCommType(IntEnum):
    """Which collective: the attribute ``comm_type``."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


#: ``CollectiveOp`` of each collective of Chakra.
COLLECTIVE_OPS = {
    kind: CollectiveOp.REDUCE_SCATTER if kind is CollectiveCommType.REDUCE_SCATTER_BLOCK else CollectiveOp[kind.name]
    for kind in CollectiveCommType
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message."""

    #: On the wire.
    number: int
    #: Of protobuf, or the name of a message or enumeration of this file.
    type: str
    #: Whether it is a list.
    repeated: bool = False
    #: The ``oneof`` that it belongs to, empty if none.
    choice: str = ""


#: Messages: name -> field name -> field.
MESSAGES: dict[str, dict[str, Field]] = {
    "AttributeProto": {
        "name": Field(1, "string"),
        "double_val": Field(3, "double", choice="value"),
        "int32_val": Field(7, "int32", choice="value"),
        "int64_val": Field(9, "int64", choice="value"),
        "uint32_val": Field(11, "uint32", choice="value"),
        "uint64_val": Field(13, "uint64", choice="value"),
        "bool_val": Field(27, "bool", choice="value"),
        "string_val": Field(29, "string", choice="value"),
    },
    "GlobalMetadata": {"version": Field(1, "string"), "attr": Field(2, "AttributeProto", repeated=True)},
    "Node": {
        "id": Field(1, "uint64"),
        "name": Field(2, "string"),
        "type": Field(3, "NodeType"),
        "ctrl_deps": Field(4, "uint64", repeated=True),
        "data_deps": Field(5, "uint64", repeated=True),
        "start_time_micros": Field(6, "uint64"),
        "duration_micros": Field(7, "uint64"),
        "attr": Field(10, "AttributeProto", repeated=True),
    },
}
ENUMS: dict[str, type[IntEnum]] = {"NodeType": NodeType, "CollectiveCommType": CollectiveCommType}

#: What a program that writes the files of a job calls them; ASTRA-sim appends ``.RANK.et`` to what it is given.
FILE_STEM = "workload"
GROUPS_FILE = "comm_groups.json"

#: Attributes that are of this project begin so; simulators skip them.
OWN_PREFIX = "stashtrace_"
MEASURED_NS = OWN_PREFIX + "measured_ns"
IDLE_NS = OWN_PREFIX + "idle_ns"
STEP = OWN_PREFIX + "step"
GROUP_NAME = OWN_PREFIX + "group"
SEQUENCE = OWN_PREFIX + "sequence"
