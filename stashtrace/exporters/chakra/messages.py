"""Chakra's messages, encoded by the ``protobuf`` package from the definition in ``schema.chakra``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stashtrace.errors import StashtraceError
from stashtrace.importers.protobuf import sized
from stashtrace.schema.chakra import ENUMS, MESSAGES, PACKAGE, SCHEMA_VERSION

#: Value of an attribute.
Value = bool | int | str
#: Field of ``AttributeProto`` of each type of value; readers take these types for these attributes.
_VALUE_FIELDS = {bool: "bool_val", int: "int64_val", str: "string_val"}
#: Attributes that feeders read as 32 bits.
_NARROW = frozenset({"comm_src", "comm_dst", "comm_tag"})


@dataclass(frozen=True, slots=True)
class Messages:
    """Message classes of the ``protobuf`` package, made once.

    Raises StashtraceError: by :meth:`load`, if the package is missing or too old.
    """

    node: Any
    metadata: Any

    @staticmethod
    @lru_cache(maxsize=1)
    def load() -> Messages:
        """Build the classes from the definition."""
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool
            from google.protobuf.message_factory import GetMessageClass
        except ImportError as error:
            raise StashtraceError(
                "Chakra traces are written by the package protobuf (4.25 or newer), which is not installed",
                hint="pip install 'stashtrace[chakra]'",
            ) from error
        pool = descriptor_pool.DescriptorPool()
        pool.Add(_definition(descriptor_pb2))
        node, metadata = (
            GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in ("Node", "GlobalMetadata")
        )
        return Messages(node, metadata)

    def head(self, attributes: Mapping[str, Value]) -> bytes:
        """Return the first message of a file, after its length."""
        message = self.metadata(version=SCHEMA_VERSION)
        _add_attributes(message, attributes)
        return sized(message.SerializeToString())

    def attributes(self, values: Mapping[str, Value]) -> bytes:
        """Return attributes as a piece of a node; the pieces of a message in a row are the message."""
        message = self.node()
        _add_attributes(message, values)
        data: bytes = message.SerializeToString()
        return data

    def base(
        self, node_id: int, name: str, kind: int, needs: Iterable[int], start_micros: int, duration_micros: int
    ) -> bytes:
        """Return a node without attributes, as a piece of a message."""
        message = self.node(
            id=node_id,
            name=name,
            type=kind,
            data_deps=needs,
            start_time_micros=start_micros,
            duration_micros=duration_micros,
        )
        data: bytes = message.SerializeToString()
        return data


def _add_attributes(message: Any, values: Mapping[str, Value]) -> None:
    for name, value in values.items():
        field = "int32_val" if name in _NARROW else _VALUE_FIELDS[type(value)]
        message.attr.add(name=name, **{field: value})


def _definition(descriptor_pb2: Any) -> Any:
    """Return the definition as a file descriptor."""
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=PACKAGE, syntax="proto3")
    for name, members in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for member in members:
            enum.value.add(name=member.name, number=member.value)
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        choices: dict[str, int] = {}
        for field_name, field in fields.items():
            made = message.field.add(name=field_name, number=field.number)
            made.label = kinds.LABEL_REPEATED if field.repeated else kinds.LABEL_OPTIONAL
            if field.type in MESSAGES or field.type in ENUMS:
                made.type = kinds.TYPE_MESSAGE if field.type in MESSAGES else kinds.TYPE_ENUM
                made.type_name = f".{PACKAGE}.{field.type}"
            else:
                made.type = getattr(kinds, f"TYPE_{field.type.upper()}")
            if field.choice:
                if field.choice not in choices:
                    choices[field.choice] = len(choices)
                    message.oneof_decl.add(name=field.choice)
                made.oneof_index = choices[field.choice]
    return file
