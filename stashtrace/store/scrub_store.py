"""A store without secrets: each file is read, scrubbed by ``pseudonyms.Scrubber``, and written again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from stashtrace.errors import FormatError
from stashtrace.files.bounded_parquet import damage_errors, parquet_file, read_parquet
from stashtrace.files.whole_files import new_file
from stashtrace.schema.events import TABLES
from stashtrace.scrubbing.pseudonyms import PATH_KEYS, Scrubber, Survey
from stashtrace.scrubbing.secrets import RANK_VARIABLES
from stashtrace.store.layout import STORE_FILE, parquet_options, read_facts, require_pyarrow

_VARIABLE = "env."
#: Key in the metadata of a file: which kinds of scrubbing it went through.
_DONE = b"stashtrace.scrubbed"
_COMMANDS = ("argv", "command")


def tables_of(store: Path) -> list[Path]:
    """Files of a store, relative to it."""
    return sorted(path.relative_to(store) for path in store.glob("*/rank=*/*.parquet"))


def survey_store(store: Path, survey: Survey) -> None:
    """Note the hosts, files and secrets that a store names. Raises FormatError if a file is damaged."""
    for name in tables_of(store):
        table = _read(store / name)
        done = (table.schema.metadata or {}).get(_DONE, b"").decode().split()
        roles = _roles(name.parts[0], table.column_names)
        note = {"path": survey.add_file, "host": survey.add_host}
        for column, role in roles.items():
            if role in note and not (role == "host" and "hosts" in done):
                for text in _texts(table, column):
                    note[role](text)
        if name.parts[0] == "metadata":
            for key, value in zip(_column(table, "key"), _column(table, "value"), strict=True):
                survey.add_facts({**_fact(key, value), "scrubbed": done})
        else:
            for column in (column for column, role in roles.items() if role not in note):
                for text in _texts(table, column):
                    survey.add_text(text)


def scrub_table(source: Path, target: Path, table_name: str, scrubber: Scrubber) -> int:
    """Write one file again and return its number of rows; variables that are no longer stored are left out."""
    import pyarrow
    import pyarrow.parquet

    table = _read(source)
    notes = dict(table.schema.metadata or {})
    done = notes.get(_DONE, b"").decode().split()
    scrubber = scrubber.after(done)
    table = table.replace_schema_metadata({**notes, _DONE: " ".join(dict.fromkeys([*done, *scrubber.done]))})
    if table_name == "metadata":
        kept = [not k.startswith(_VARIABLE) or k[len(_VARIABLE) :] in RANK_VARIABLES for k in _column(table, "key")]
        table = table.filter(pyarrow.array(kept, pyarrow.bool_()))
    roles = _roles(table_name, table.column_names)
    for number, field in enumerate(table.schema):
        if _is_text(field.type):
            old = _column(table, field.name)
            if table_name == "metadata" and field.name == "value":
                made = [_value(key, text, scrubber) for key, text in zip(_column(table, "key"), old, strict=True)]
            else:
                is_title = (table_name, field.name) == ("processes", "name")
                change = scrubber.name if is_title else _change(roles[field.name], scrubber)
                made = [change(text) for text in old]
            new = pyarrow.array(made, pyarrow.string())
            new = new if pyarrow.types.is_string(field.type) else new.dictionary_encode()
            table = table.set_column(number, pyarrow.field(field.name, new.type, metadata=field.metadata), new)
    schema = TABLES.get(table_name)
    options: dict[str, Any] = {"compression": "zstd"} if schema is None else parquet_options(schema, len(table))
    with open(new_file(target), "wb") as file:
        pyarrow.parquet.write_table(table, file, **options)
        file.flush()
        os.fsync(file.fileno())
    return len(table)


def scrubbed_facts(store: Path, scrubber: Scrubber, rows: dict[str, int]) -> str:
    """New content of the store's file."""
    facts = read_facts(store)
    before = facts.pop("scrubbed", [])
    done = [str(name) for name in before] if isinstance(before, list) else []
    scrubber = scrubber.after(done)
    text = {key: scrubber.text(value) if isinstance(value, str) else value for key, value in facts.items()}
    return json.dumps({**text, "rows": rows, "scrubbed": list(dict.fromkeys([*done, *scrubber.done]))}) + "\n"


def others_of(store: Path) -> Iterator[Path]:
    """Files that are not part of a store."""
    known = {store / name for name in tables_of(store)} | {store / STORE_FILE}
    return (path for path in sorted(store.rglob("*")) if path.is_file() and path not in known)


def _roles(table_name: str, columns: Iterable[str]) -> dict[str, str]:
    """Role of each column; of one that this version does not know, its name has to say it."""
    schema = TABLES.get(table_name)
    known = {} if schema is None else {c.shown_name: c.role for c in schema.columns}
    return {column: known.get(column, column) for column in columns}


def _change(role: str, scrubber: Scrubber) -> Callable[[str], str]:
    if role == "path":
        return scrubber.path
    return scrubber.host if role == "host" else scrubber.text


def _value(key: str, text: str, scrubber: Scrubber) -> str:
    if key in _COMMANDS:  # words are joined by blanks there
        return " ".join(scrubber.words(text.split(" ")))
    if key == "host":
        return scrubber.host(text)
    return scrubber.path(text) if key in PATH_KEYS else scrubber.text(text)


def _fact(key: str, value: str) -> dict[str, Any]:
    if key.startswith(_VARIABLE):
        return {"env": {key[len(_VARIABLE) :]: value}}
    return {key: value.split(" ") if key in _COMMANDS else value}


def _read(path: Path) -> Any:
    require_pyarrow()

    try:
        with parquet_file(path) as file:
            return read_parquet(file, path.stat().st_size)
    except damage_errors() as error:
        raise FormatError(f"{path} is damaged: {error}", hint="export the run again") from error


def _is_text(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_dictionary(kind))


def _texts(table: Any, column: str) -> set[str]:
    known = column in table.column_names and _is_text(table.schema.field(column).type)
    return set(_column(table, column)) if known else set()


def _column(table: Any, name: str) -> list[str]:
    return [text or "" for text in table.column(name).to_pylist()]
