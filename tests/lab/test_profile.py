"""Characterizations read back: whole ones, partial ones, and files that are none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from published_runs import characterization

from stashtrace.errors import FormatError, MissingDataError, UnsupportedVersionError
from stashtrace.lab.number_intervals import Interval
from stashtrace.lab.recommend.profile import THIS_MACHINE, Profile, load_profile


def content(**changes: Any) -> dict[str, Any]:
    return characterization("bert-base", "10GbE", "WFBP-A2A") | changes


def loaded(folder: Path, whole: Any, **options: str) -> Profile:
    path = folder / "characterization.json"
    path.write_text(whole if isinstance(whole, str) else json.dumps(whole), encoding="utf-8")
    return load_profile(path, **options)


def test_what_stands_in_it(tmp_path: Path) -> None:
    one = loaded(tmp_path, content())
    assert (one.instance, one.devices_count, one.batch_samples) == ("node4", 4, 64)
    assert (one.network_hosts_count, one.network_devices_count, one.network_instance) == (2, 8, "node4")
    assert sorted(one.step_ns) == [1, 2, 5]
    assert one.step_ns[2].value == pytest.approx(4 * 64 / 634.10 * 1e9)
    assert one.step_ns[2].low == pytest.approx(4 * 64 / (634.10 + 2 * 0.88) * 1e9)
    assert one.notes == ()


def test_step_five_has_as_many_ranks_as_the_host_unless_it_says(tmp_path: Path) -> None:
    one = loaded(tmp_path, content(network={"emulated": False, "instance": "node2"}))
    assert (one.network_devices_count, one.network_instance) == (4, "node2")


def test_an_unnamed_machine(tmp_path: Path) -> None:
    assert loaded(tmp_path, content(instance="")).instance == THIS_MACHINE
    assert "names no instance" in load_profile(tmp_path).notes[0]
    assert load_profile(tmp_path, instance="p3.8xlarge").instance == "p3.8xlarge"
    assert loaded(tmp_path, content(), instance="p3.8xlarge").instance == "node4", "what the file says comes first"


def test_weaknesses_become_notes(tmp_path: Path) -> None:
    whole = content(quick=True, network={"emulated": True, "rate_bits_per_s": 10**10})
    for name in ("t1_ns", "t2_ns", "t5_ns"):
        whole["steps"][name] |= {"low_ns": None, "high_ns": None}
    whole["steps"]["t3_ns"] = {"value_ns": None, "status": "failed", "why": "no permission"}
    one = loaded(tmp_path, whole)
    assert one.network_emulated
    assert math.isnan(one.step_ns[1].low)
    for part in ("--quick", "emulated", "run once", "configuration 3 of", "no permission"):
        assert any(part in note for note in one.notes), part


def test_devices_by_one_name_or_a_list(tmp_path: Path) -> None:
    assert loaded(tmp_path, content(machine={"devices": "NVIDIA L4"})).machine_devices == ("NVIDIA L4",)
    assert loaded(tmp_path, content(machine=None)).machine_devices == ()


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ("{", "no JSON"),
        ("[]", "not an object"),
        ({"format": 1}, "no `steps`"),
        (content(format=None), "format is None"),
        (content(format=True), "format is True"),
        (content(devices_count=0), "devices_count is 0"),
        (content(batch_samples="many"), "batch_samples is 'many'"),
        ('{"format": 1, "devices_count": Infinity, "steps": {"t1_ns": {"value_ns": 1}}}', "devices_count is inf"),
        (content(instance=4), "instance is 4"),
        (content(steps={"t1_ns": 4}), "t1_ns is not a table"),
        (content(steps={"t1_ns": {"value_ns": "4"}}), "t1_ns holds '4'"),
        (content(steps={"t1_ns": {"value_ns": 0}}), "t1_ns is 0"),
        (content(steps={"t1_ns": {"value_ns": 5, "low_ns": 6, "high_ns": 7}}), "outside its interval"),
    ],
)
def test_what_is_no_characterization(tmp_path: Path, whole: Any, message: str) -> None:
    with pytest.raises(FormatError, match="not a usable characterization: ") as caught:
        loaded(tmp_path, whole)
    assert message in str(caught.value)
    assert caught.value.hint


def test_nothing_measured_nothing_there_and_newer(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no configuration of"):
        loaded(tmp_path, content(steps={"t1_ns": {"value_ns": None, "status": "failed"}}))
    with pytest.raises(MissingDataError, match="does not exist"):
        load_profile(tmp_path / "other.json")
    with pytest.raises(UnsupportedVersionError, match="format 9"):
        loaded(tmp_path, content(format=9))


def test_a_step_takes_no_less_than_nothing(tmp_path: Path) -> None:
    """Two runs far apart: the interval of characterize is that of a difference, and may begin below zero."""
    steps = {"t1_ns": {"value_ns": 5, "low_ns": -7, "high_ns": 17, "status": "measured"}}
    assert loaded(tmp_path, content(steps=steps)).step_ns[1] == Interval(5.0, 0.0, 17.0)


def test_interval_arithmetic() -> None:
    assert Interval(1.0).at_least(2.0).value == 2.0
    assert math.isnan((Interval(1.0, 0.0, 2.0) + Interval(1.0)).low)
    assert Interval(3.0, 2.0, 4.0).times(2.0) == Interval(6.0, 4.0, 8.0)
    assert Interval(3.0, 2.0, 4.0).or_more(Interval(1.0, 0.0, 5.0)) == Interval(3.0, 2.0, 5.0)
    assert Interval(3.0, 2.0, 4.0).widened([Interval(7.0, 6.0, 9.0)]) == Interval(3.0, 2.0, 9.0)
    assert not Interval(3.0, 2.0, 4.0).widened([Interval(7.0)]).known
    assert Interval(3.0, 2.0, 4.0).overlaps(Interval(5.0, 4.0, 6.0))
    assert not Interval(3.0).overlaps(Interval(3.0))
