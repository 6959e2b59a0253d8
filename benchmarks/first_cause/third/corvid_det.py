"""corvid_det: one-shot detector trained from annotation lines."""

# SPDX-License-Identifier: Apache-2.0
import copy
import json
import os
import re
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
BOX = re.compile(
    r"\s*(?P<label>[a-z_]+(?:-[a-z_]+)*)\s*@\s*(?P<x>[-+]?\d+(?:\.\d+)?)\s*,\s*(?P<y>[-+]?\d+(?:\.\d+)?)"
    r"\s*:\s*(?P<w>\d+(?:\.\d+)?)\s*x\s*(?P<h>\d+(?:\.\d+)?)\s*(?:;|$)"
)
LABELS = {"crow": 0, "rook": 1, "jack_daw": 2, "mag-pie": 3}


class Annotated(Dataset):
    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        self.records = []
        names = list(LABELS)
        for _ in range(32):
            values = torch.rand(130, 4, generator=g).mul(200).tolist()
            text = ";".join(f"{names[int(v[0]) % 4]} @ {v[0]:.3f},{v[1]:.3f}:{v[2]:.2f}x{v[3]:.2f}" for v in values)
            self.records.append(json.dumps({"boxes": text, "meta": {"tags": names * 10}}))
        self.parsed = {}

    def __len__(self):
        return 100000

    def boxes(self, i):
        if "1" not in FIX:
            return self.parse(self.records[i])
        if i not in self.parsed:
            self.parsed[i] = self.parse(self.records[i])
        return self.parsed[i]

    def parse(self, record):
        text = json.loads(record)["boxes"]
        rows = []
        while text:
            match = BOX.match(text)
            rows.append([LABELS[match["label"]]] + [float(match[k]) for k in "xywh"])
            text = text[match.end() :]
        return torch.tensor(rows)

    def __getitem__(self, i):
        return torch.rand(3, 48, 48), self.boxes(i % len(self.records))


class Detector(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, c, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(c, 2 * c, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(2 * c, 4 * c, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.neck = nn.Linear(64 * c, 512)
        self.head = nn.Linear(512, 4)

    def forward(self, image):
        return self.head(torch.relu(self.neck(self.body(image))))


class ShadowWeights:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.model = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model):
        if "2" in FIX:
            old, new = list(self.model.parameters()), list(model.parameters())
            torch._foreach_lerp_(old, new, 1 - self.decay)
            return
        new = copy.deepcopy(model.state_dict())
        old = copy.deepcopy(self.model.state_dict())
        mixed = {k: (old[k].double() * self.decay + new[k].double() * (1 - self.decay)).to(old[k].dtype) for k in old}
        self.model.load_state_dict(mixed)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    core = Detector()
    model = DistributedDataParallel(core)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    shadow = ShadowWeights(core) if rank == 0 else None
    loader = DataLoader(Annotated(rank), batch_size=24)
    ticks = []
    for _step, (image, boxes) in zip(range(STEPS), loader, strict=False):
        loss = nn.functional.smooth_l1_loss(model(image), boxes[:, :, 1:].mean(1) / 200)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if shadow:
            shadow.update(core)
        ticks.append(time.perf_counter())
    if rank == 0:
        print(f"corvid_det: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
