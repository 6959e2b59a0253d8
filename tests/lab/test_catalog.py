"""The instance catalog: what is shipped, what a user's file changes, and what is not a catalog."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from stashtrace.errors import FormatError, MissingDataError, UnsupportedVersionError
from stashtrace.lab.recommend.instance_catalog import INTERCONNECTS, Catalog, Instance, load_catalog

# Dollars an hour: `cost_map` of Stash's analyze.py (aakash-sharma/DS-Analyzer@5fb06a1), and a public list for P3dn.
STASH_PRICES = {
    "p2.xlarge": 0.9,
    "p2.8xlarge": 7.2,
    "p2.16xlarge": 14.4,
    "p3.2xlarge": 3.06,
    "p3.8xlarge": 12.24,
    "p3.16xlarge": 24.48,
    "p3dn.24xlarge": 31.212,
}
FAMILIES = ("p2.", "p3.", "p3dn.", "p4d.", "p4de.", "p5.", "g4dn.", "g5.", "g6.")


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


class TestShipped:
    def test_prices_are_those_that_stash_used(self) -> None:
        catalog = load_catalog()
        assert {name: catalog.instances[name].price_per_hour for name in STASH_PRICES} == STASH_PRICES

    def test_every_price_has_day_and_source(self) -> None:
        priced = [one for one in load_catalog().instances.values() if one.price_per_hour is not None]
        assert len(priced) > 30
        for one in priced:
            assert datetime.date.fromisoformat(one.priced_on).year >= 2026
            assert one.source
            assert one.region
            assert one.currency == "USD"

    def test_what_has_no_price_has_no_source_of_one(self) -> None:
        one = load_catalog().instances["p5e.48xlarge"]
        assert one.price_per_hour is None
        assert (one.priced_on, one.source, one.region) == ("", "", "")

    def test_families_and_facts(self) -> None:
        instances = load_catalog().instances
        assert all(any(name.startswith(family) for name in instances) for family in FAMILIES)
        for one in instances.values():
            assert one.device
            assert one.devices_count > 0
            assert one.device_memory_bytes > 8e9
            assert one.vcpus_count > 0
            assert one.memory_bytes > 8e9
            assert one.interconnect in INTERCONNECTS
            assert (one.interconnect == "none") == (one.devices_count == 1)


class TestOverride:
    def test_given_price_alone_keeps_the_machine_and_loses_the_source(self, tmp_path: Path) -> None:
        path = written(tmp_path, '[instance."p3.8xlarge"]\nprice_per_hour = 9\n')
        before, after = (load_catalog(paths).instances["p3.8xlarge"] for paths in ([], [path]))
        assert (after.device, after.devices_count, after.vcpus_count) == (before.device, 4, before.vcpus_count)
        assert (after.price_per_hour, after.currency, after.priced_on, after.source) == (9.0, "USD", "", str(path))

    def test_other_key_keeps_the_price(self, tmp_path: Path) -> None:
        path = written(tmp_path, '[instance."p3.8xlarge"]\nnetwork_bits_per_s = 5_000_000_000\n')
        one = load_catalog([path]).instances["p3.8xlarge"]
        assert (one.price_per_hour, one.priced_on, one.network_bits_per_s) == (12.24, "2026-08-26", 5 * 10**9)

    def test_new_instances_and_defaults(self, tmp_path: Path) -> None:
        text = '[defaults]\ncurrency = "EUR"\npriced_on = 2026-01-02\nsource = "offer 7"\n[instance.ours]\n'
        path = written(tmp_path, text + 'device = "T4"\ndevices_count = 2\nprice_per_hour = 1.5\n')
        one = load_catalog([path], shipped=False).instances["ours"]
        assert one == Instance(
            "ours", "T4", 2, price_per_hour=1.5, currency="EUR", priced_on="2026-01-02", source="offer 7"
        )

    def test_price_of_the_command_line(self) -> None:
        catalog = load_catalog().with_price("p3.8xlarge", 7.0).with_price("ours", 1.0)
        assert catalog.instances["p3.8xlarge"].price_per_hour == 7.0
        assert catalog.instances["p3.8xlarge"].priced_on == ""
        assert catalog.instances["p3.8xlarge"].region == ""
        assert catalog.instances["p3.8xlarge"].devices_count == 4
        assert catalog.instances["ours"].price_per_hour == 1.0

    def test_a_file_without_instances_is_said_and_changes_nothing(self, tmp_path: Path) -> None:
        catalog = load_catalog([written(tmp_path, "version = 1\n")])
        assert catalog.instances == load_catalog().instances
        assert "holds no instance" in catalog.notes[0]
        assert load_catalog(shipped=False) == Catalog()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("price = [", "no TOML"),
        ("version = 0", "version is 0"),
        ("version = true", "version is True"),
        ("instance = 3", "each instance one"),
        ("[instance]\na = 3", "instance a is not a table"),
        ("[instance.a]\nprice_per_hour = -1", "price_per_hour of a is -1"),
        ("[instance.a]\nprice_per_hour = nan", "price_per_hour of a is nan"),
        ("[instance.a]\nprice_per_hour = 'much'", "price_per_hour of a is 'much'"),
        ("[instance.a]\ndevices_count = 1.5", "devices_count of a is 1.5"),
        ("[instance.a]\ndevice = 8", "device of a is 8"),
        ("[instance.a]\nnetwork_burst = 1", "network_burst of a is 1"),
        ("[instance.a]\nprice_per_hour = 1\npriced_on = 'last week'", "priced_on of a is 'last week', no day"),
        ("[instance.a]\nprice_per_hour = 1\npriced_on = '2026-13-45'", "priced_on of a is '2026-13-45', no day"),
        ("[instance.a]\nprice_per_hour = 1\npriced_on = 2026-13-45", "no TOML"),
        ("[instance.a]\nprice_per_hour = 1\npriced_on = 07:32:00", "priced_on of a is"),
    ],
)
def test_what_is_no_catalog(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=r"not a usable instance catalog: ") as caught:
        load_catalog([written(tmp_path, text)])
    assert message in str(caught.value)
    assert caught.value.hint


def test_files_that_are_not_there_or_newer(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="does not exist"):
        load_catalog([tmp_path / "none.toml"])
    with pytest.raises(FormatError, match="is a directory"):
        load_catalog([tmp_path])
    with pytest.raises(UnsupportedVersionError, match="catalog format 2"):
        load_catalog([written(tmp_path, "version = 2\n")])
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="not UTF-8"):
        load_catalog([binary])
