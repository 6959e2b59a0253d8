"""Connections that nobody answers: named where a rank waits or sleeps, and not where bytes came over them."""

from __future__ import annotations

import errno

import pytest
from builders import MS, TraceBuilder
from summary.scenes import verdicts

from stashtrace.schema.kinds import IoFlag, IoOp, WaitOp

ADDRESS = "127.0.0.1:9"


def said(*, result: int, every: int = 1, answers: bool = False, then: int = 0) -> list[str]:
    """Steps of 40 ms, 25 of which sleep after an attempt to connect in every n-th of them."""
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(24):
        at = 40 * MS * step
        if step % every == 0:
            rank.io(at, at + MS // 10, op=IoOp.CONNECT, path=ADDRESS, flags=IoFlag.SOCKET, result_bytes=-result)
        if then:
            op, asked = IoOp.CONNECT_ERROR, at + MS // 5
            rank.io(asked, asked + 1000, op=op, path=ADDRESS, flags=IoFlag.SOCKET, result_bytes=-then)
        if answers:
            rank.io(at + MS // 10, at + MS // 5, op=IoOp.RECV, path=ADDRESS, flags=IoFlag.SOCKET, result_bytes=64)
        rank.wait(WaitOp.SLEEP, at + MS, at + 26 * MS)
        rank.phase("forward", at + 26 * MS, at + 35 * MS).phase("optimizer", at + 35 * MS, at + 39 * MS)
    (verdict,) = [one for one in verdicts(build.trace()) if one.kind == "other"]
    return [text for text in verdict.evidence if ADDRESS in text]


@pytest.mark.parametrize("result", [errno.ECONNREFUSED, errno.ETIMEDOUT])
def test_refused_connections_are_said(result: int) -> None:
    (text,) = said(result=result)
    assert text.startswith(f"rank 0 connects to {ADDRESS} 19 times in 19 steps, which is refused or not answered")


def test_of_a_connection_that_was_not_waited_for_only_its_silence_is_known() -> None:
    (text,) = said(result=errno.EINPROGRESS)
    assert "refused" not in text
    assert "nothing comes over these connections" in text


def test_a_refusal_that_comes_after_the_call_is_said_once() -> None:
    (text,) = said(result=errno.EINPROGRESS, then=errno.ECONNREFUSED)
    assert text.startswith(f"rank 0 connects to {ADDRESS} 19 times in 19 steps, which is refused or not answered")


def test_a_connection_that_carries_bytes_is_no_reason() -> None:
    assert said(result=errno.EINPROGRESS, answers=True) == []


def test_few_attempts_explain_no_time_of_a_step() -> None:
    assert said(result=errno.ECONNREFUSED, every=5) == []
