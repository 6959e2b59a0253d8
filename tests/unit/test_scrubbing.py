"""The rule for secrets in command lines, on the cases that the native half is held to as well."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest

from stashtrace.analysis.io.data_files import is_data_file
from stashtrace.pseudonyms import Scrubber, Survey
from stashtrace.scrubbing import scrub_arguments, scrub_urls

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "scrubbed_arguments.json").read_text(encoding="utf-8"))
NAMES = json.loads((DATA / "scrubbed_names.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("given", "expected"), CASES, ids=lambda words: " ".join(words))
def test_secrets_go_and_the_rest_stays(given: list[str], expected: list[str]) -> None:
    assert scrub_arguments(given) == expected
    assert scrub_arguments(expected) == expected, "a second time changes nothing"


def test_what_is_taken_out_is_told() -> None:
    """`scrub` removes it wherever else it stands."""
    for given, _ in CASES:
        taken: set[str] = set()
        scrub_arguments(given, taken)
        assert all(value in " ".join(given) for value in taken)
        assert "<scrubbed>" not in " ".join(scrub_arguments(given)) or taken or "<scrubbed>" in " ".join(given)


@pytest.mark.parametrize(("given", "expected"), NAMES)
def test_addresses_as_names_of_files(given: str, expected: str) -> None:
    taken: set[str] = set()
    assert scrub_urls(given, taken) == expected
    assert scrub_urls(expected) == expected
    assert bool(taken) == (given != expected)


def test_folders_before_an_address_get_pseudonyms() -> None:
    """A relative name that is a URL is stored behind the working directory."""
    new = Scrubber(Survey(), b"key", paths=True).path("/home/me/project/https://host/a/b.bin")
    assert new.endswith(".bin")
    assert "/https://" in new
    assert not {"home", "me", "project", "host", "a"} & set(new.split("/"))


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/home/me/build/libops.so.1.2",
        "/home/me/v/lib/python3.14t/json/tables.dat",
        "/home/me/v/site-packages/torch/version.txt",
        "/home/me/train.py",
        "/etc/localtime",
        "/data/me/a.jpg",
        "/home/me/lib/b.h5",
        "relative/c.tar",
    ],
)
def test_pseudonyms_leave_data_data_and_programs_programs(path: str) -> None:
    new = Scrubber(Survey(), b"key", paths=True).path(path)
    assert new != path
    assert "me" not in new.split("/")
    assert is_data_file(new) == is_data_file(path)
