"""The picture of the house is drawn from the code as it is, and the tree keeps the figures that it was built for."""

from __future__ import annotations

import re
from types import ModuleType
from xml.etree import ElementTree

import pytest
from source_tree import ROOT, docs_script


@pytest.fixture(scope="module")
def house() -> ModuleType:
    """The generator, which parses the package once for all that is asked here."""
    found = docs_script("generate_house")
    edges = found.module_imports(found.python_files())
    found.module_imports = lambda modules: edges
    return found


def test_picture_and_floors_are_fresh(house: ModuleType) -> None:
    stale = [file.name for file, text in house.FILES.items() if file.read_text(encoding="utf-8") != text()]
    assert stale == [], f"run {house.COMMAND}"


def test_floors_name_every_package(house: ModuleType) -> None:
    """A folder that is new has a row on the page as soon as it has a floor."""
    table = house.floor_table("FLOORS", house.PACKAGE)
    assert {p.parent.name for p in house.PACKAGE.glob("*/__init__.py")} == set(
        re.findall(r"^\| \S+ \| `(\w+)/`", table, re.M)
    )
    assert "`tune/`" in table
    with pytest.raises(LookupError):
        house.declared_floors("CELLARS")


def test_figures(house: ModuleType) -> None:
    modules = house.python_files()
    figures = dict(house.figures(modules, house.module_imports(modules)))
    assert figures["circles of files"] == "0"
    assert figures["folders of more than 15 files"] == "stashtrace/cli/commands"
    assert int(figures["analysis/: entries"]) <= 14
    assert int(figures["analysis/: floors"]) <= 7
    assert int(figures["analysis/: arrows between folders"]) <= 33


def test_every_package_and_question_is_in_the_picture(house: ModuleType) -> None:
    svg = ElementTree.parse(house.PICTURE).getroot()
    names = {node.text for node in svg.iter("{http://www.w3.org/2000/svg}text") if node.get("class") == "name"}
    packages = {p.parent for p in (ROOT / "stashtrace").glob("*/__init__.py")}
    questions = {p.parent for p in (ROOT / "stashtrace/analysis").glob("*/__init__.py")}
    assert {p.name for p in packages | questions} <= names
