"""A small image set on disk: written once, then read and decoded for real by the training script.

Ten classes of coloured gratings in noise: easy enough that the loss falls within seconds, noisy enough that
JPEG has work to do. With Pillow the files are JPEG; without it they are PNG-like (one zlib stream of
row-differenced RGB), so the example runs with numpy and torch alone.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from plain_clock import Faults, PlainClock
from torch.nn import functional
from torch.utils.data import Dataset

try:
    from PIL import Image
except ImportError:
    Image = None  # type: ignore[assignment]

CLASSES = 10
Pixels = npt.NDArray[np.uint8]


def generate(folder: Path, count: int, size: int, seed: int = 0) -> None:
    """Write `count` images of `size` x `size` pixels unless the folder already holds that very set."""
    description = f"{count} images of {size} pixels, seed {seed}, {'jpg' if Image else 'rgbz'}"
    marker = folder / "set.txt"
    if marker.exists() and marker.read_text() == description:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for old in [marker, *folder.glob("image-*")]:
        old.unlink(missing_ok=True)
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / size
    for number in range(count):
        label = number % CLASSES
        angle, phase = np.pi * label / CLASSES, random.uniform(0, 2 * np.pi)
        grating = np.sin(40 * (x * np.cos(angle) + y * np.sin(angle)) + phase)[..., None]
        colour = random.uniform(60, 120, size=3)
        noise = random.integers(-24, 25, size=(size, size, 1), dtype=np.int16)
        pixels = np.clip(128 + grating * colour + noise, 0, 255).astype(np.uint8)
        suffix, content = encode(pixels)
        (folder / f"image-{number:06d}-{label}{suffix}").write_bytes(content)
    marker.write_text(description)


def encode(pixels: Pixels) -> tuple[str, bytes]:
    """File suffix and content for one image."""
    if Image:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
        return ".jpg", buffer.getvalue()
    rows = np.diff(pixels, axis=0, prepend=np.zeros_like(pixels[:1]))
    return ".rgbz", len(pixels).to_bytes(4, "little") + zlib.compress(rows.tobytes(), 6)


def decode(content: bytes, suffix: str) -> Pixels:
    """Pixels of one image, height x width x RGB."""
    if suffix == ".jpg":
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    size = int.from_bytes(content[:4], "little")
    rows = np.frombuffer(zlib.decompress(content[4:]), dtype=np.uint8).reshape(size, -1, 3)
    return np.cumsum(rows, axis=0, dtype=np.uint8)


class ImageSet(Dataset[tuple[torch.Tensor, int]]):
    """The files of a folder, decoded and augmented (random resized crop, random flip) one by one."""

    def __init__(self, files: list[Path], crop: int, clock: PlainClock, faults: Faults) -> None:
        self.files = files
        self.crop = crop
        self.clock = clock
        self.faults = faults

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.files[index]
        with self.clock.sample("read"):
            content = path.read_bytes()
        if self.faults.read_bytes:
            self.faults.slow_read(index, self.clock)
        with self.clock.sample("decode"):
            pixels = decode(content, path.suffix)
            self.faults.slow_decode()
            image = self.augment(pixels)
        return image, int(path.stem.rsplit("-", 1)[1])

    def collate(self, samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor, list[object]]:
        """Stack the samples of a batch."""
        with self.clock.sample("collate"):
            images, labels = zip(*samples, strict=True)
            return torch.stack(images), torch.tensor(labels), self.faults.luggage()

    def augment(self, pixels: Pixels) -> torch.Tensor:
        """A random square of at least half the image, scaled to `crop` pixels and mirrored half of the time."""
        side = int(torch.randint(len(pixels) // 2, len(pixels) + 1, ()))
        top, left = torch.randint(0, len(pixels) - side + 1, (2,)).tolist()
        square = torch.from_numpy(np.array(pixels[top : top + side, left : left + side]))
        image = square.permute(2, 0, 1)[None].float().div_(127.5).sub_(1.0)
        image = functional.interpolate(image, size=self.crop, mode="bilinear", antialias=True)[0]
        return image.flip(2) if torch.rand(()) < 0.5 else image
