"""python_stacks: what an event loop waits for, as the frames of the coroutine that it drives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from other_pythons import RECORDS, VERSIONS, interpreter, run_script
from read_stacks import BEGIN, Stacks

from stashtrace.schema.kinds import StackCause

PYTHONS = pytest.mark.parametrize("minor", [minor for minor in VERSIONS if minor >= RECORDS])

FORMS = (
    "\n    import asyncio"
    + BEGIN
    + """
    async def fetch(seconds):
        await asyncio.sleep(seconds)

    async def nested():
        await fetch(0.02)

    async def alike():
        await asyncio.gather(fetch(0.02), fetch(0.021))

    async def unlike():
        await asyncio.gather(fetch(0.02), nested())

    async def limited():
        await asyncio.wait_for(fetch(0.02), 5)

    async def all_of():
        await asyncio.wait([asyncio.create_task(fetch(0.02))])

    async def guarded():
        await asyncio.shield(fetch(0.02))

    async def elsewhere():
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.02)

    async def grouped():
        async with asyncio.TaskGroup() as group:
            group.create_task(fetch(0.02))

    async def items():
        await asyncio.sleep(0.02)
        yield 1

    async def iterated():
        async for _ in items():
            pass

    async def outer_items():
        async for item in items():
            yield item

    kept = []

    def stepped():
        kept.append(outer_items())
        return kept[-1].__anext__()

    class Promise:
        def __await__(self):
            yield from asyncio.sleep(0.02).__await__()

    async def promised():
        await Promise()

    class Circle(asyncio.Future):
        @property
        def _children(self):
            return [asyncio.current_task() or self.task]

    async def circular():
        waiter = Circle()
        waiter.task = asyncio.current_task()
        asyncio.get_running_loop().call_later(0.02, waiter.set_result, None)
        await waiter

    async def short():
        for _ in range(100):
            await asyncio.sleep(0)

    stacks.watch()
    for form in 3 * FORM_NAMES:  # a loop that gets no CPU until its sleep is over does not wait at all
        loop = asyncio.new_event_loop()
        loop.run_until_complete(globals()[form]())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def running():
        stacks.thread_state.stack_watched = False
        stacks.watch()
        await fetch(0.02)

    events = sys.modules["asyncio.selector_events"].BaseSelectorEventLoop
    events.__init__ = events.__init__.__stashtrace_original__
    for _ in range(3):
        asyncio.run(running())
"""
)
#: The user's functions of each form, from the coroutine that the loop drives inwards.
EXPECTED = {
    "nested": ["nested", "fetch"],
    "alike": ["alike", "fetch"],
    "unlike": ["unlike"],
    "limited": ["limited", "fetch"],
    "all_of": ["all_of", "fetch"],
    "guarded": ["guarded"],
    "elsewhere": ["elsewhere"],
    "grouped": ["grouped", "fetch"],
    "iterated": ["iterated", "items"],
    "stepped": ["outer_items", "items"],
    "promised": ["promised", "Promise.__await__"],
    "circular": ["circular"],
    "short": [],
}


OWN_SELECTORS = (
    "\n    import asyncio, gc, selectors, weakref"
    + BEGIN
    + """
    class Slotted:
        __slots__ = ("_own",)
        def __init__(self):
            self._own = selectors.DefaultSelector()
        def select(self, timeout=None):
            return self._own.select(timeout)
        def __getattr__(self, name):
            return getattr(self._own, name)

    stacks.watch()
    loop = asyncio.SelectorEventLoop(Slotted())
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    gc.disable()
    loop = asyncio.new_event_loop()
    forgotten = weakref.ref(loop._selector)
    loop._selector.close()
    loop._selector = None
    print(forgotten() is None)
    loop.close = lambda: None
    os._exit(0) if sys.stdout.flush() is None else None
"""
)


def test_selectors_of_a_program_are_as_they_were(tmp_path: Path) -> None:
    stdout, stderr = run_script(sys.executable, OWN_SELECTORS, tmp_path / "run")
    assert (stdout, stderr) == ("True\n", "")


@PYTHONS
def test_what_a_loop_waits_for(tmp_path: Path, minor: int) -> None:
    forms = [form for form in EXPECTED if form != "grouped" or minor >= 11]
    code = FORMS.replace("FORM_NAMES", repr(forms))
    _, stderr = run_script(interpreter(minor), code, tmp_path / "run")
    found = Stacks(tmp_path / "run")
    awaited = [span for span in found.spans if span.cause == StackCause.AWAITED]
    users = [[name for name, path, _ in reversed(span.stack) if path == "<string>"] for span in awaited]
    names = [found[found.index("<module>") + 1 :] for found in users]
    seen = {("stepped" if path[0] == "outer_items" else path[0]): path for path in names if path}
    qualified = minor >= 11
    expected = {
        name: path if qualified else [part.rpartition(".")[2] for part in path] for name, path in EXPECTED.items()
    }
    assert stderr == ""
    assert seen == {**{name: expected[name] for name in forms if expected[name]}, "running": ["running", "fetch"]}
    lines = {path[-1]: span.stack for path, span in zip(names, awaited, strict=True) if path}
    assert {line for name, _, line in lines["fetch"] if name == "fetch"} == {
        FORMS[: FORMS.index("sleep(seconds)")].count("\n") + 1
    }
    assert all(span.end_ns - span.begin_ns >= 1_000_000 for span in awaited)
