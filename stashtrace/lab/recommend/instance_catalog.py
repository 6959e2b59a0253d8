"""The instance catalog: what can be rented, with which devices, for how much. TOML files, one over the other.

The shipped files lie in ``stashtrace/lab/recommend/prices``; a file of the user names only what it changes. A price
belongs to a day and a source, so a price that somebody changes loses both unless they come with it. Format:
docs/reference/catalog.md.
"""

from __future__ import annotations

import datetime
import importlib.resources
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stashtrace.files.checked_files import CheckedFile, is_number
from stashtrace.report.blocks import Block, Paragraph, Table

FORMAT_VERSION = 1
#: What is wired between the devices of one instance. ``none``: there is one device.
INTERCONNECTS = ("none", "pcie", "nvlink", "nvswitch")
_TEXTS = ("device", "interconnect", "provider", "region", "currency", "priced_on", "source")
_COUNTS = ("devices_count", "device_memory_bytes", "network_bits_per_s", "vcpus_count", "memory_bytes")
#: What says something of a price alone, and goes with it.
_OF_PRICE = ("priced_on", "source", "region")


@dataclass(frozen=True, slots=True)
class Instance:
    """One row of a catalog; 0 and the empty text mean "not known"."""

    #: As the provider calls it: ``p3.8xlarge``.
    name: str
    #: The accelerator, empty for a machine without.
    device: str = ""
    devices_count: int = 0
    #: Of one device, nominal.
    device_memory_bytes: int = 0
    #: One of :data:`INTERCONNECTS`, or a word of the user's.
    interconnect: str = ""
    #: Between hosts.
    network_bits_per_s: int = 0
    #: The provider promises that rate for short times only.
    network_burst: bool = False
    vcpus_count: int = 0
    memory_bytes: int = 0
    #: None: nobody gave one.
    price_per_hour: float | None = None
    currency: str = ""
    region: str = ""
    provider: str = ""
    #: Day on which the price was read, ISO 8601.
    priced_on: str = ""
    #: Where.
    source: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Instances by name, in the order of the files."""

    instances: Mapping[str, Instance] = field(default_factory=dict)
    #: What was odd about the files.
    notes: tuple[str, ...] = ()

    def get(self, name: str) -> Instance | None:
        """Instance of a name; None if there is none."""
        return self.instances.get(name)

    def with_price(self, name: str, price: float) -> Catalog:
        """Return the catalog with another price; an unknown name becomes an instance with nothing else."""
        known = self._raw(name)
        known.update(dict.fromkeys(_OF_PRICE, ""), price_per_hour=price, source="the command line")
        known["currency"] = known.get("currency") or self.currency
        return Catalog({**self.instances, name: _instance(name, known, _catalog_file("the catalog"))}, self.notes)

    @property
    def currency(self) -> str:
        """Currency of the first price; USD if there is none."""
        return next((i.currency for i in self.instances.values() if i.currency), "USD")

    def _raw(self, name: str) -> dict[str, Any]:
        one = self.instances.get(name)
        return {} if one is None else {key: getattr(one, key) for key in one.__slots__ if key != "name"}


def load_catalog(paths: Iterable[str | os.PathLike[str]] = (), *, shipped: bool = True) -> Catalog:
    """Load the shipped instances, and lay the user's files over them in turn.

    ``paths``: files whose instances are added, or change those of the same name key by key. Raises MissingDataError if
    a file does not exist. Raises UnsupportedVersionError if a newer stashtrace is needed to read it. Raises FormatError
    if it is not a catalog, or a value in it makes no sense; the message names it.
    """
    catalog = Catalog()
    folder = importlib.resources.files("stashtrace.lab.recommend.prices")
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name) if shipped else ():
        if entry.name.endswith(".toml"):
            catalog = _laid_over(catalog, _catalog_file(entry.name), entry.read_text(encoding="utf-8"))
    for path in paths:
        file = _catalog_file(os.fspath(path))
        catalog = _laid_over(catalog, file, file.read())
    return catalog


def _catalog_file(path: str) -> CheckedFile:
    return CheckedFile(path, "catalog", "instance catalog", "see docs/reference/catalog.md")


def _laid_over(below: Catalog, file: CheckedFile, text: str) -> Catalog:
    content = file.toml(text)
    file.require_version(content.get("version", FORMAT_VERSION), FORMAT_VERSION)
    defaults, entries = content.get("defaults", {}), content.get("instance", {})
    if not isinstance(defaults, dict) or not isinstance(entries, dict):
        raise file.damaged('`defaults` is a table, and each instance one: [instance."NAME"]')
    instances = dict(below.instances)
    for key, entry in entries.items():
        if not isinstance(entry, dict):
            raise file.damaged(f'instance {key} is not a table: [instance."{key}"]')
        known = below._raw(key)
        given = dict(entry) if known else {**defaults, **entry}
        if "price_per_hour" in given:
            own = {k: v for k, v in {**defaults, **entry}.items() if k in (*_OF_PRICE, "currency")}
            known.update(dict.fromkeys(_OF_PRICE, ""), source=file.path)
            given.update(own)
        instances[key] = _instance(key, {**known, **given}, file)
    notes = below.notes if entries else (*below.notes, f"{file.path} holds no instance")
    return Catalog(instances, notes)


def _instance(key: str, values: Mapping[str, Any], file: CheckedFile) -> Instance:
    fields: dict[str, Any] = {}
    for name in _TEXTS:
        value = values.get(name, "")
        fields[name] = value.isoformat() if isinstance(value, datetime.date) else value
        file.require(isinstance(fields[name], str), f"{name} of {key}", value, ", no text")
    if day := fields["priced_on"]:
        try:
            fields["priced_on"] = datetime.datetime.fromisoformat(day).date().isoformat()
        except ValueError:
            raise file.damaged(f"priced_on of {key} is {day!r}, no day such as 2026-11-01") from None
    for name in _COUNTS:
        fields[name] = value = values.get(name, 0)
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        file.require(is_count, f"{name} of {key}", value, ", no whole number")
    price = values.get("price_per_hour")
    if price is None:
        fields |= dict.fromkeys(_OF_PRICE, "")
    else:
        file.require(is_number(price) and price >= 0, f"price_per_hour of {key}", price, ", no price")
        fields |= {"price_per_hour": float(price), "currency": fields["currency"] or "USD"}
    burst = values.get("network_burst", False)
    file.require(isinstance(burst, bool), f"network_burst of {key}", burst, ", neither true nor false")
    return Instance(key, network_burst=burst, **fields)


def catalog_blocks(catalog: Catalog) -> list[Block | None]:
    """Return the catalog to show, with day and source of each price."""
    if not catalog.instances:
        return [Paragraph("the catalog is empty")]
    head = ("instance", "device", "devices", "joined by", "network", "vCPUs", "price/h", "", "of", "region")
    sources = list(dict.fromkeys(instance.source for instance in catalog.instances.values() if instance.source))
    cells = [
        (
            instance.name,
            instance.device or "-",
            str(instance.devices_count or "-"),
            instance.interconnect or "-",
            _network(instance),
            str(instance.vcpus_count or "-"),
            "-" if instance.price_per_hour is None else f"{instance.price_per_hour:.5g}",
            "" if instance.price_per_hour is None else instance.currency,
            instance.priced_on or "-",
            f"{instance.region or '-'}" + (f" [{sources.index(instance.source) + 1}]" if instance.source else ""),
        )
        for instance in catalog.instances.values()
    ]
    notes = [f"[{number}] {source}" for number, source in enumerate(sources, 1)]
    if any(instance.network_burst for instance in catalog.instances.values()):
        notes.append("* for short times")
    return [Table("", head, cells, {0, 1, 3, 7, 8, 9}, indent=""), *map(Paragraph, notes)]


def _network(instance: Instance) -> str:
    if not instance.network_bits_per_s:
        return "-"
    return f"{instance.network_bits_per_s / 1e9:g} Gb/s{'*' if instance.network_burst else ''}"
