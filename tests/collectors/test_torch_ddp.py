"""What DistributedDataParallel says of its buckets, and whose size of them counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from installed import needs_torch
from traced import run_traced

from stashtrace.probes import recorder
from stashtrace.probes.torch.ddp import VARIABLE, install, wanted_mib
from stashtrace.replay.communication.messages import BUCKET, GRADIENTS, ddp_facts
from stashtrace.schema.trace import Trace

pytestmark = pytest.mark.torch
torch = needs_torch()

#: Wrappers of one process, by what the script asks for; each says what size torch took.
SCRIPT = """
import inspect
import json
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class Own(DDP):
    def __init__(self, module):
        super().__init__(module)

def net():
    layers = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2, bias=False))
    layers[0].bias.requires_grad = False
    return layers

def ignoring():
    layers = net()
    DDP._set_params_and_buffers_to_ignore_for_model(layers, ["0.weight"])
    return layers

names = list(inspect.signature(DDP.__init__).parameters)
before = [None, None, 0, True, True, None][: names.index("bucket_cap_mb") - 2]
dist.init_process_group("gloo")
ways = {
    "default": lambda: DDP(net()),
    "none": lambda: DDP(net(), bucket_cap_mb=None),
    "keyword": lambda: DDP(net(), bucket_cap_mb=7),
    "positional": lambda: DDP(net(), *before, 9),
    "positional none": lambda: DDP(net(), *before, None),
    "subclass": lambda: Own(net()),
    "ignoring": lambda: DDP(ignoring()),
}
if "bucket_cap_mb_list" in names:
    ways["list"] = lambda: DDP(net(), bucket_cap_mb_list=[3, 5])
chosen = sys.argv[1:] or list(ways)
sizes = {way: ways[way]().bucket_bytes_cap / 2**20 for way in chosen}
try:
    DDP()
except TypeError as error:
    sizes["error"] = str(error)
try:
    DDP(net(), no_such_option=1)
except TypeError as error:
    sizes["unknown"] = [str(error), error.__context__ is None]
sizes["name"] = DDP.__init__.__qualname__
sizes["same"] = names == list(inspect.signature(DDP.__init__).parameters)
print(json.dumps(sizes))
dist.destroy_process_group()
"""


def ran(tmp_path: Path, *ways: str, **env: str) -> tuple[dict[str, Any], Trace]:
    run = run_traced(SCRIPT, tmp_path, args=ways, env=env)
    return run.results()[0], run.trace


def test_a_size_takes_the_place_of_the_default_alone(tmp_path: Path) -> None:
    sizes, trace = ran(tmp_path / "a", STASHTRACE_BUCKET_MB="2.5")
    applied = dict.fromkeys(("default", "none", "positional none", "subclass"), 2.5)
    assert {way: sizes[way] for way in applied} == applied
    assert (sizes["keyword"], sizes["positional"]) == (7, 9)
    assert sizes.get("list", 5) == 5
    assert "missing 1 required positional argument: 'module'" in sizes["error"]
    said, alone = sizes["unknown"]
    assert "unexpected keyword argument 'no_such_option'" in said
    assert alone  # without an exception of ours before it
    assert (sizes["name"], sizes["same"]) == ("DistributedDataParallel.__init__", True)
    facts = ddp_facts(trace)
    assert (facts.bucket_mib, facts.sources) == (None, ("applied", "script"))
    assert not len(facts.gradients_bytes)  # several models


def test_one_model_says_its_size_and_its_gradients(tmp_path: Path) -> None:
    """In the reverse order of the parameters, without the one that is frozen."""
    sizes, trace = ran(tmp_path, "default")
    assert sizes["default"] == 25
    facts = ddp_facts(trace)
    assert (facts.bucket_mib, facts.sources) == (25, ("default",))
    assert facts.gradients_bytes.tolist() == [4 * 2 * 4, 8 * 4 * 4]


@pytest.mark.thorough
def test_parameters_that_the_wrapper_leaves_alone_have_no_gradients_to_send(tmp_path: Path) -> None:
    _, trace = ran(tmp_path, "ignoring")
    assert ddp_facts(trace).gradients_bytes.tolist() == [4 * 2 * 4]


def test_a_constructor_that_takes_no_size_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrapper:
        bucket_bytes_cap = 25 * 2**20

        def __init__(self, module: object, process_group: object = None) -> None:
            self.module = torch.nn.Linear(2, 2)

    reported: dict[str, object] = {}
    monkeypatch.setattr(recorder, "record_fact", reported.__setitem__)
    monkeypatch.setenv(VARIABLE, "4")
    install(SimpleNamespace(DistributedDataParallel=Wrapper))  # type: ignore[arg-type]
    Wrapper(None)
    assert reported["ddp_bucket 0"] == "25 default"


def test_a_size_is_a_positive_number_of_mib() -> None:
    assert [wanted_mib(text) for text in ("4", "0.5", "1e3")] == [4, 0.5, 1000]
    assert isinstance(wanted_mib("4"), int)
    assert [wanted_mib(text) for text in ("", "x", "0", "-1", "inf", "nan", "25M", "1e300", "1e-9")] == [None] * 9


@pytest.mark.parametrize(
    ("bucket", "gradients", "expected"),
    [
        (("25 default",), ("4 8",), (25.0, ("default",), [4, 8])),
        (("25 default",), ("4 8", "5"), (25.0, ("default",), [])),
        (("25 default", "4 script"), ("4 8",), (None, ("default", "script"), [])),
        (("25 default",), ("4 x",), (25.0, ("default",), [])),
        (("nonsense",), (), (None, (), [])),
        (("1e 5 x",), (), (None, (), [])),
        (("1.2.3 default",), ("4",), (None, ("default",), [4])),
        ((), (), (None, (), [])),
    ],
)
def test_facts_that_make_no_sense_are_as_none(
    bucket: tuple[str, ...], gradients: tuple[str, ...], expected: tuple[float | None, tuple[str, ...], list[float]]
) -> None:
    from builders import TraceBuilder

    build = TraceBuilder()
    for key, values in ((BUCKET, bucket), (GRADIENTS, gradients)):
        for number, value in enumerate(values):
            codes = {"key_code": build.strings.code(f"{key} {number}"), "value_code": build.strings.code(value)}
            build.add("metadata", process_id=build.rank(0).process_id, **codes)
    build.rank(0)
    found = ddp_facts(build.trace())
    assert (found.bucket_mib, found.sources) == expected[:2]
    assert np.array_equal(found.gradients_bytes, np.array(expected[2], dtype=float))
