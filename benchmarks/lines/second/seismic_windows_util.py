"""Reading windows from a recording of 16-bit samples kept on disk."""

# SPDX-License-Identifier: Apache-2.0
import time

import numpy as np

WINDOW = 1024
SAMPLES = 24_000_000


def write_recording(path, seed):
    rng = np.random.default_rng(seed)
    block = rng.normal(0, 300, SAMPLES // 24).astype(np.int16)
    with open(path, "wb") as f:
        for _ in range(24):
            f.write(block.tobytes())
    return path


class Recording:
    def __init__(self, path):
        self.samples = np.memmap(path, dtype=np.int16, mode="r")
        self.length = len(self.samples)
        self.reference = np.random.default_rng(1).integers(0, self.length, 3_000_000)
        self.seconds = 0.0

    def cut(self, starts):
        return np.stack([self.samples[s : s + WINDOW] for s in starts]).astype(np.float32)

    def loudness(self, starts):
        strided = self.samples[int(starts[0]) % 7 :: 4096]
        return float(np.abs(strided.astype(np.float32)).mean())

    def background(self, starts):
        t0 = time.perf_counter()
        sites = self.samples[self.reference]  # <- here
        self.seconds += time.perf_counter() - t0
        return float(sites[int(starts[0]) % 7 :: 4096].std()) + 1.0
