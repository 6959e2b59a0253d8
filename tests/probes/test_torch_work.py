"""Who may claim to know when a collective ended. Works are stand-ins; the recorder's writers are replaced."""

from __future__ import annotations

import pytest

from stashtrace.probes.torch import work as torch_work
from stashtrace.probes.torch.work import FINE, UNSEEN, Launch, launched


class Work:
    """A Work whose future has completed already, as that of a device does at the enqueue."""

    def get_future(self) -> Work:
        return self

    def add_done_callback(self, callback) -> None:
        callback(self)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch):
    """(end_ticks, status) of the ``collective_done`` rows that were written."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(torch_work, "_emit_done", lambda _ret, _begin, end, _id, status: found.append((end, status)))
    yield found
    torch_work.let_go()
    torch_work.forget()


def launch() -> Launch:
    made = Launch(7, 50)
    made.return_ticks = 100
    return made


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("work", [None, Work()])
def test_an_accelerator_claims_no_end(ends: list, work: Work | None, blocking: bool) -> None:
    """NCCL gives no Work back for a blocking call, and the future of its Work completes when the kernel is enqueued."""
    launched(launch(), work, blocking=blocking, end_visible=False)
    assert ends == [(0, UNSEEN)]


def test_the_cpu_does(ends: list) -> None:
    launched(launch(), None, blocking=True, end_visible=True)
    assert ends == [(100, FINE)]
    launched(launch(), Work(), blocking=False, end_visible=True)
    (_, (end, status)) = ends
    assert end > 0
    assert status == FINE
