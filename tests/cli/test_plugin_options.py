"""Options of a package's analysis, derived from its signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Optional

import pytest

from stashtrace.cli.commands.analyze import add_options, first_sentence, parameter_texts
from stashtrace.cli.parsing import Parser
from stashtrace.errors import PluginError, UsageError
from stashtrace.registry import Plugin

if TYPE_CHECKING:
    from nowhere import Thing

PLUGIN = Plugin("analysis", "mine", "package 1.0", EntryPoint("mine", "module:mine", "stashtrace.analyses"))


def mine(
    trace: object,
    word: str = "a",
    *,
    count: int | None = None,
    ratio: Optional[float] = 0.5,  # noqa: UP045 - other packages write it so
    where: Path | None = None,
    order: Literal["rank", "time"] = "rank",
    level: Literal[1, 2] = 1,
    whole: bool = True,
    ranks: Sequence[int] = (),
    names: tuple[str, ...] | None = None,
    paths: list[Path] | None = None,
    named: Thing = 3,
    quoted: "Thing" = 4,  # noqa: UP037
    name: str = "",
    plain=2.5,
    callback: Callable[[int], int] | None = None,
    **more: Any,
) -> None:
    """Say what is mine.

    Longer words.

    Parameters
    ----------
    trace : Trace
        The run.
    word, count
        Of both
        two lines.
    ratio : float
        Up to 100%.

    Returns
    -------
    None
        whole : not a parameter
    """


def read(function: Callable[..., object], *words: str) -> dict[str, Any]:
    """Values of the options that were given."""
    parser = Parser("analyze", "")
    places = add_options(parser, PLUGIN, function)
    namespace = parser.parse_args(list(words))
    return {name: value for name, place in places.items() if (value := getattr(namespace, place)) is not None}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["--word", "b", "--count", "-3"], {"word": "b", "count": -3}),
        (["--ratio", "0.25", "--where", "x/y"], {"ratio": 0.25, "where": Path("x/y")}),
        (["--order", "time", "--level", "2"], {"order": "time", "level": 2}),
        (["--no-whole"], {"whole": False}),
        (["--whole"], {"whole": True}),
        (["--ranks", "0,2, 5"], {"ranks": [0, 2, 5]}),
        (["--names", "a,b"], {"names": ("a", "b")}),
        (["--paths", "a"], {"paths": [Path("a")]}),
        (["--named", "4", "--quoted", "5"], {"named": 4, "quoted": 5}),  # defaults say what annotations cannot
        (["--name", "x", "--plain", "1"], {"name": "x", "plain": 1.0}),
    ],
)
def test_values(words: list[str], expected: dict[str, Any]) -> None:
    assert read(mine, *words) == expected


@pytest.mark.parametrize(
    "words",
    [["--count", "x"], ["--order", "size"], ["--level", "3"], ["--ranks", "0,a"], ["--callback", "f"], ["--more", "1"]],
)
def test_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        read(mine, *words)


def test_what_must_be_given() -> None:
    def needs(trace: object, *, limit: int) -> None: ...

    assert read(needs, "--limit", "3") == {"limit": 3}
    with pytest.raises(UsageError, match="--limit"):
        read(needs)


@pytest.mark.parametrize("name", ["debug", "verbose", "help"])
def test_names_that_are_taken(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def taken(trace, *, {name}: int = 1): ...", scope)
    with pytest.raises(PluginError, match=f"'mine' of package 1.0 has a parameter '{name}'"):
        read(scope["taken"])


def test_texts_of_the_docstring() -> None:
    assert first_sentence(mine) == "Say what is mine"
    assert parameter_texts(mine) == {
        "trace": "The run",
        "word": "Of both two lines",
        "count": "Of both two lines",
        "ratio": "Up to 100%",
    }


def test_help_shows_texts_and_defaults() -> None:
    parser = Parser("analyze", "")
    add_options(parser, PLUGIN, mine)
    text = " ".join(parser.format_help().split())
    assert "options of mine: --word TEXT Of both two lines (default a) --count INT Of both two lines --ratio" in text
    assert "Up to 100% (default 0.5)" in text
    assert "--whole, --no-whole (default yes)" in text
    assert "--callback" not in text
