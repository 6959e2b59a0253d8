"""The networks of the layers study have the tensors and parameters of the published ones, at the published width."""

from __future__ import annotations

import pytest

from stashtrace.errors import UsageError
from stashtrace.lab.sweep.shapes import DEPTHS, FAMILIES, gradient_shapes, named, network

PAPER = {"width": 64, "image_pixels": 224, "classes_count": 1000}


@pytest.mark.parametrize(
    ("family", "depth", "options", "tensors", "parameters"),
    [
        ("resnet", 18, {}, 62, 11_689_512),
        ("resnet", 34, {}, 110, 21_797_672),
        ("resnet", 50, {}, 161, 25_557_032),
        ("resnet", 101, {}, 314, 44_549_160),
        ("resnet", 152, {}, 467, 60_192_808),
        ("vgg", 11, {"batch_norm": False}, 22, 132_863_336),
        ("vgg", 13, {"batch_norm": False}, 26, 133_047_848),
        ("vgg", 16, {"batch_norm": False}, 32, 138_357_544),
        ("vgg", 19, {"batch_norm": False}, 38, 143_667_240),
    ],
)
def test_published_networks(family: str, depth: int, options: dict[str, bool], tensors: int, parameters: int) -> None:
    net = network(family, depth, **PAPER, **options)
    assert net.tensors_count == tensors
    assert net.parameters_count == parameters


def test_a_transformer_by_hand() -> None:
    """Two tensors of embeddings, twelve a block, two of the last norm, two of the head."""
    net = network("transformer", 3, width=64, classes_count=10, tokens_count=8)
    assert net.tensors_count == 2 + 12 * 3 + 4
    block = 2 * 64 + (64 * 192 + 192) + (64 * 64 + 64) + 2 * 64 + (64 * 256 + 256) + (256 * 64 + 64)
    assert net.parameters_count == 10 * 64 + 8 * 64 + 3 * block + 2 * 64 + 64 * 10 + 10


def test_what_is_left_out_is_not_sent() -> None:
    whole, bare = network("resnet", 18), network("resnet", 18, residual=False, batch_norm=False)
    assert whole.tensors_count == 62
    # Seventeen convolutions with a bias each, and the linear layer; no shortcuts.
    assert bare.tensors_count == 17 * 2 + 2
    assert sum(1 for shape in gradient_shapes(bare) if shape[2:] == (1, 1)) == 0
    assert whole.gradient_bytes == 4 * whole.parameters_count


@pytest.mark.parametrize("family", FAMILIES)
def test_names_are_read_back(family: str) -> None:
    for depth in DEPTHS[family]:
        for options in ({}, {"width": 64}, {"residual": False}, {"batch_norm": False}):
            if (family, *options) in {("vgg", "residual"), ("transformer", "batch_norm")}:
                continue
            net = network(family, depth, **options)
            assert named(net.name) == net


@pytest.mark.parametrize(
    "name",
    ["alexnet", "resnet", "resnet7", "vgg11-nores", "transformer0", "transformer4-nobn", "resnet18-wide", "vgg11-w0"],
)
def test_there_is_no_such_network(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        named(name)
    assert caught.value.hint
