"""Networks of the layers study, as shapes: how many gradient tensors and bytes a variant has, before it is built.

Depth variants are those of Stash's study of layers and gradients (its scripts: ResNet 10 to 50, VGG 11 to 19, with and
without residual links and batch norm). At width 64, 224 pixels and 1000 classes they have the tensors and parameters
of the published networks; the defaults are small enough for CPUs. Built by ``lab.sweep.study_worker``. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from stashtrace.errors import UsageError

FAMILIES = ("resnet", "vgg", "transformer")
#: Depth -> (blocks of the four stages, whether they are bottlenecks of three convolutions).
RESNET_STAGES: Mapping[int, tuple[tuple[int, int, int, int], bool]] = {
    10: ((1, 1, 1, 1), False),
    12: ((2, 1, 1, 1), False),
    16: ((2, 2, 2, 1), False),
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
#: Depth -> convolutions of the five stages; three linear layers follow.
VGG_STAGES: Mapping[int, tuple[int, int, int, int, int]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
VGG_CHANNELS = (1, 2, 4, 8, 8)
BOTTLENECK = 4
#: Depths of a depth sweep by default, and the one whose width or buckets are swept.
DEPTHS: Mapping[str, tuple[int, ...]] = {
    "resnet": (10, 12, 16, 18, 34, 50),
    "vgg": (11, 13, 16, 19),
    "transformer": (1, 2, 4, 6, 8),
}
MIDDLE: Mapping[str, int] = {"resnet": 18, "vgg": 11, "transformer": 4}
#: Width by default: channels of the first stage, or features of a token.
WIDTHS: Mapping[str, int] = {"resnet": 16, "vgg": 16, "transformer": 96}
#: Widths of a width sweep, in parts of the default one.
WIDTH_FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0)
#: From this many pixels on, the first convolution is that of ImageNet networks.
LARGE_IMAGE = 128
_MOST_LAYERS = 1000
_FLOAT_BYTES = 4
_NAME = re.compile(r"(resnet|vgg|transformer)(\d+)((?:-[a-z0-9]+)*)")

TensorShape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Network:
    """One network of the study."""

    #: One of :data:`FAMILIES`.
    family: str
    #: Layers with weights, by the count of the papers; blocks of a transformer.
    depth: int
    #: Channels of the first stage, features of a token.
    width: int
    #: Whether it has them. A transformer has layer norms, always.
    residual: bool = True
    batch_norm: bool = True
    #: Side of an image.
    image_pixels: int = 32
    #: Classes, words of a transformer.
    classes_count: int = 100
    #: Length of a transformer's sentence.
    tokens_count: int = 32

    @property
    def name(self) -> str:
        """Name of the network, as in ``resnet18-w32-nores-nobn``; :func:`named` reads it."""
        parts = [f"{self.family}{self.depth}"]
        if self.width != WIDTHS[self.family]:
            parts.append(f"w{self.width}")
        if not self.residual:
            parts.append("nores")
        if not self.batch_norm and self.family != "transformer":
            parts.append("nobn")
        return "-".join(parts)

    @property
    def tensors_count(self) -> int:
        """Number of gradient tensors."""
        return sum(1 for _ in gradient_shapes(self))

    @property
    def parameters_count(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for shape in gradient_shapes(self))

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients in single precision."""
        return _FLOAT_BYTES * self.parameters_count


def network(family: str, depth: int, **options: object) -> Network:
    """Make a variant of a family, with what the family has by default.

    ``family``: one of :data:`FAMILIES`. ``depth``: one that the family has; any from 1 for a transformer. ``options``:
    other attributes of :class:`Network`. Raises UsageError if there is no such variant.

    Examples
    --------
    >>> paper = {"width": 64, "image_pixels": 224, "classes_count": 1000}
    >>> resnet, vgg = network("resnet", 50, **paper), network("vgg", 11, batch_norm=False, **paper)
    >>> resnet.tensors_count, resnet.parameters_count, vgg.tensors_count, vgg.parameters_count
    (161, 25557032, 22, 132863336)
    """
    if family not in FAMILIES:
        raise UsageError(f"no family of networks is called {family!r}", hint="one of " + ", ".join(FAMILIES))
    known = {"resnet": RESNET_STAGES, "vgg": VGG_STAGES}.get(family)
    if known is not None and depth not in known:
        raise UsageError(f"there is no {family}{depth}", hint="one of " + ", ".join(map(str, known)))
    if not 1 <= depth <= _MOST_LAYERS:
        raise UsageError(f"there is no {family}{depth}", hint=f"a transformer has 1 to {_MOST_LAYERS} blocks")
    made = replace(Network(family, depth, WIDTHS[family]), **options)  # type: ignore[arg-type]
    if made.width < 1:
        raise UsageError(f"{made.width} is not a width", hint="channels of the first stage, for example 16")
    if family == "transformer":
        if not made.batch_norm:
            raise UsageError("a transformer has no batch norm to leave out", hint="--family resnet or vgg")
        if made.width % heads_count(made.width):
            raise UsageError(f"a transformer of width {made.width} cannot be divided into heads", hint="an even width")
    elif not made.residual and family == "vgg":
        raise UsageError("a VGG has no residual links to leave out", hint="--family resnet or transformer")
    return made


def named(text: str) -> Network:
    """Find the variant of a name.

    Raises UsageError if no variant is called that.

    Examples
    --------
    >>> named("resnet34-w32-nobn").parameters_count, named("vgg16").name
    (5345380, 'vgg16')
    """
    match = _NAME.fullmatch(text.strip().lower())
    options: dict[str, object] = {}
    for word in match.group(3).split("-")[1:] if match else ():
        if re.fullmatch(r"w\d+", word):
            options["width"] = int(word[1:])
        elif word in ("nores", "nobn"):
            options["residual" if word == "nores" else "batch_norm"] = False
        else:
            match = None
    if match is None:
        raise UsageError(f"no network is called {text!r}", hint="for example resnet34, vgg16-nobn, transformer12-w128")
    return network(match.group(1), int(match.group(2)), **options)


def gradient_shapes(net: Network) -> Iterator[TensorShape]:
    """Shapes of the gradient tensors in the order of the forward pass; backward makes them ready from the last on."""
    makers = {"resnet": _resnet, "vgg": _vgg, "transformer": _transformer}
    return makers[net.family](net)


def first_kernel(net: Network) -> int:
    """Side of a ResNet's first convolution."""
    return 7 if net.image_pixels >= LARGE_IMAGE else 3


def vgg_features(net: Network) -> int:
    """Inputs of a VGG's first linear layer: what five poolings leave of the image, in channels of the last stage."""
    return VGG_CHANNELS[-1] * net.width * max(net.image_pixels // 32, 1) ** 2


def heads_count(width: int) -> int:
    """Heads of a transformer's attention."""
    return max(width // 32, 1) if width % 32 == 0 else 2


def _convolution(net: Network, inputs: int, outputs: int, kernel: int) -> Iterator[TensorShape]:
    """Shapes of a convolution: weight, and scale and shift of its batch norm, or a bias where there is none."""
    yield (outputs, inputs, kernel, kernel)
    yield (outputs,)
    if net.batch_norm:
        yield (outputs,)


def _linear(inputs: int, outputs: int) -> Iterator[TensorShape]:
    yield (outputs, inputs)
    yield (outputs,)


def _resnet(net: Network) -> Iterator[TensorShape]:
    blocks, deep = RESNET_STAGES[net.depth]
    yield from _convolution(net, 3, net.width, first_kernel(net))
    inputs = net.width
    for stage, count in enumerate(blocks):
        middle = net.width << stage
        outputs = middle * (BOTTLENECK if deep else 1)
        for block in range(count):
            if deep:
                yield from _convolution(net, inputs, middle, 1)
                yield from _convolution(net, middle, middle, 3)
                yield from _convolution(net, middle, outputs, 1)
            else:
                yield from _convolution(net, inputs, middle, 3)
                yield from _convolution(net, middle, outputs, 3)
            if net.residual and block == 0 and (stage > 0 or inputs != outputs):
                yield from _convolution(net, inputs, outputs, 1)
            inputs = outputs
    yield from _linear(inputs, net.classes_count)


def _vgg(net: Network) -> Iterator[TensorShape]:
    inputs = 3
    for factor, count in zip(VGG_CHANNELS, VGG_STAGES[net.depth], strict=True):
        for _ in range(count):
            yield from _convolution(net, inputs, factor * net.width, 3)
            inputs = factor * net.width
    hidden = 64 * net.width
    yield from _linear(vgg_features(net), hidden)
    yield from _linear(hidden, hidden)
    yield from _linear(hidden, net.classes_count)


def _transformer(net: Network) -> Iterator[TensorShape]:
    width = net.width
    yield (net.tokens_count, width)
    yield (net.classes_count, width)
    for _ in range(net.depth):
        yield from ((width,), (width,))
        yield from _linear(width, 3 * width)
        yield from _linear(width, width)
        yield from ((width,), (width,))
        yield from _linear(width, 4 * width)
        yield from _linear(4 * width, width)
    yield from ((width,), (width,))
    yield from _linear(width, net.classes_count)
