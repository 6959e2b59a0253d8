"""The instance catalog: what can be rented, with which devices, for how much. TOML files, one over the other.

The shipped files lie in ``stashtrace/lab/recommend/prices``; a user's own file names only what it changes. A price
belongs to a day and a source, so a price that somebody changes loses both unless they come with it. Format:
docs/reference/catalog.md.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import importlib
import importlib.resources
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stashtrace.errors import FormatError, MissingDataError, UnsupportedVersionError

FORMAT_VERSION = 1
#: What is wired between the devices of one instance. ``none``: there is one device.
INTERCONNECTS = ("none", "pcie", "nvlink", "nvswitch")
_TEXTS = ("device", "interconnect", "provider", "region", "currency", "priced_on", "source")
_COUNTS = ("devices_count", "device_memory_bytes", "network_bits_per_s", "vcpus_count", "memory_bytes")
#: What says something of a price alone, and goes with it.
_OF_PRICE = ("priced_on", "source", "region")


@dataclass(frozen=True, slots=True)
class Instance:
    """One row of a catalog; 0 and the empty text are "not known".

    Attributes
    ----------
    name : str
        As the provider calls it: ``p3.8xlarge``.
    device : str
        The accelerator, empty for a machine without.
    devices_count : int
    device_memory_bytes : int
        Of one device, nominal.
    interconnect : str
        One of :data:`INTERCONNECTS`, or a word of the user's.
    network_bits_per_s : int
        Between hosts.
    network_burst : bool
        The provider promises that rate for short times only.
    vcpus_count, memory_bytes : int
    price_per_hour : float or None
        None: nobody gave one.
    currency, region, provider : str
    priced_on : str
        Day on which the price was read, ISO 8601.
    source : str
        Where.
    """

    name: str
    device: str = ""
    devices_count: int = 0
    device_memory_bytes: int = 0
    interconnect: str = ""
    network_bits_per_s: int = 0
    network_burst: bool = False
    vcpus_count: int = 0
    memory_bytes: int = 0
    price_per_hour: float | None = None
    currency: str = ""
    region: str = ""
    provider: str = ""
    priced_on: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Instances by name, in the order of the files.

    Attributes
    ----------
    instances : mapping of str to Instance
    notes : tuple of str
        What was odd about the files.
    """

    instances: Mapping[str, Instance] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def get(self, name: str) -> Instance | None:
        """The instance of that name, if there is one."""
        return self.instances.get(name)

    def with_price(self, name: str, price: float, source: str = "the command line") -> Catalog:
        """The same catalog with one price of the user's own; an unknown name becomes an instance with nothing else."""
        known = self._raw(name)
        known.update(dict.fromkeys(_OF_PRICE, ""), price_per_hour=price, source=source)
        known["currency"] = known.get("currency") or self.currency
        return Catalog({**self.instances, name: _instance(name, known, "")}, self.notes)

    @property
    def currency(self) -> str:
        """That of the first price; USD if there is none."""
        return next((i.currency for i in self.instances.values() if i.currency), "USD")

    def _raw(self, name: str) -> dict[str, Any]:
        one = self.instances.get(name)
        return {} if one is None else {key: getattr(one, key) for key in one.__slots__ if key != "name"}


def load_catalog(paths: Iterable[str | os.PathLike[str]] = (), *, shipped: bool = True) -> Catalog:
    """The shipped instances, with the files of the user laid over them in turn.

    Parameters
    ----------
    paths : iterable of path
        Files whose instances are added, or change those of the same name key by key.
    shipped : bool
        Whether to begin with what comes with stashtrace.

    Raises
    ------
    MissingDataError
        If a file does not exist.
    UnsupportedVersionError
        If a newer stashtrace is needed to read it.
    FormatError
        If it is no catalog, or a value in it makes no sense; the message names it.
    """
    catalog = Catalog()
    if shipped:
        for entry in sorted(
            importlib.resources.files("stashtrace.lab.recommend.prices").iterdir(), key=lambda e: e.name
        ):
            if entry.name.endswith(".toml"):
                catalog = _laid_over(catalog, entry.name, entry.read_text(encoding="utf-8"))
    for path in paths:
        catalog = _laid_over(catalog, os.fspath(path), _text(path))
    return catalog


def _text(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path)
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = "docs/reference/catalog.md shows what stands in one"
        raise MissingDataError(f"catalog {name} does not exist", hint=hint) from None
    except IsADirectoryError:
        raise FormatError(f"{name} is a directory, not a catalog", hint="--catalog FILE.toml") from None
    except UnicodeDecodeError:
        raise _damaged(name, "it is not UTF-8 text") from None


def _laid_over(below: Catalog, name: str, text: str) -> Catalog:
    # The same code under two names: part of Python since 3.11.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        content: dict[str, Any] = toml.loads(text)
    except ValueError as error:
        raise _damaged(name, f"no TOML: {str(error).splitlines()[0][:120]}") from error
    version = content.get("version", FORMAT_VERSION)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _damaged(name, f"version is {version!r}")
    if version > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{name} has catalog format {version}; this stashtrace reads up to {FORMAT_VERSION}",
            hint="a newer stashtrace reads it",
        )
    defaults, entries = content.get("defaults", {}), content.get("instance", {})
    if not isinstance(defaults, dict) or not isinstance(entries, dict):
        raise _damaged(name, '`defaults` is a table, and each instance one: [instance."NAME"]')
    instances = dict(below.instances)
    for key, entry in entries.items():
        if not isinstance(entry, dict):
            raise _damaged(name, f'instance {key} is no table: [instance."{key}"]')
        known = below._raw(key)
        given = dict(entry) if known else {**defaults, **entry}
        if "price_per_hour" in given:
            own = {k: v for k, v in {**defaults, **entry}.items() if k in (*_OF_PRICE, "currency")}
            known.update(dict.fromkeys(_OF_PRICE, ""), source=name)
            given.update(own)
        instances[key] = _instance(key, {**known, **given}, name)
    notes = below.notes if entries else (*below.notes, f"{name} holds no instance")
    return Catalog(instances, notes)


def _instance(key: str, values: Mapping[str, Any], file: str) -> Instance:
    made: dict[str, Any] = {}
    for name in _TEXTS:
        value = values.get(name, "")
        made[name] = value.isoformat() if isinstance(value, datetime.date) else value
        if not isinstance(made[name], str):
            raise _damaged(file, f"{name} of {key} is {value!r}, no text")
    if made["priced_on"]:
        made["priced_on"] = _day(file, key, made["priced_on"])
    for name in _COUNTS:
        value = values.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _damaged(file, f"{name} of {key} is {value!r}, no whole number")
        made[name] = value
    price = values.get("price_per_hour")
    if price is not None:
        if not isinstance(price, int | float) or isinstance(price, bool) or not math.isfinite(price) or price < 0:
            raise _damaged(file, f"price_per_hour of {key} is {price!r}, no price")
        made["currency"] = made["currency"] or "USD"
    else:
        made.update(dict.fromkeys(_OF_PRICE, ""))
    burst = values.get("network_burst", False)
    if not isinstance(burst, bool):
        raise _damaged(file, f"network_burst of {key} is {burst!r}, neither true nor false")
    return Instance(key, price_per_hour=None if price is None else float(price), network_burst=burst, **made)


def _day(file: str, key: str, text: str) -> str:
    try:
        return datetime.datetime.fromisoformat(text).date().isoformat()
    except ValueError:
        raise _damaged(file, f"priced_on of {key} is {text!r}, no day such as 2026-11-01") from None


def _damaged(name: str, why: str) -> FormatError:
    return FormatError(f"{name or 'the catalog'} is no instance catalog: {why}", hint="see docs/reference/catalog.md")
