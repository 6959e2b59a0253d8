"""What the screen is taken to show."""

from __future__ import annotations

import io

import pytest

from stashtrace.cli.screen import Screen


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "utf8"),
    [
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LC_ALL": "C.UTF-8"}, True),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, False),
        ({"LANG": "de_DE.ISO-8859-1"}, False),
        ({}, False),
        ({"LC_CTYPE": "C.UTF-8"}, False),  # set by Python itself in the C locale
        ({"LC_CTYPE": "C.UTF-8", "LANG": "en_US.UTF-8"}, True),
    ],
)
def test_utf8_by_the_locale(environment: dict[str, str], utf8: bool) -> None:
    assert Screen(Terminal(), environment).utf8 is utf8


def test_colour_is_for_terminals_that_want_it() -> None:
    assert Screen(Terminal(), {}).colour
    assert not Screen(Terminal(), {"NO_COLOR": "1"}).colour
    assert not Screen(Terminal(), {"TERM": "dumb"}).colour
    assert not Screen(io.StringIO(), {}).colour


def test_the_bar_erases_itself_and_is_quiet_elsewhere() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        with Screen(stream, {}).progress("merging") as progress:
            progress.stage(0.5, 1.0)
            progress.step(0.5, "packing")
    assert " 75 %  packing" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert file.getvalue() == ""


def test_a_long_task_says_each_part_once_where_no_bar_can_be() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        with Screen(stream, {}).progress("measuring", lines=True) as progress:
            for share, task in ((0.1, "start 1"), (0.2, "start 1"), (0.5, "start 2"), (0.9, "")):
                progress.step(share, task)
    assert file.getvalue() == "measuring start 1\nmeasuring start 2\n"
    assert "\n" not in terminal.getvalue()


def test_a_closed_stream_is_no_reason_to_fail() -> None:
    stream = io.StringIO()
    screen = Screen(stream, {})
    stream.close()
    screen.say("nobody reads this")
    assert stream.closed
