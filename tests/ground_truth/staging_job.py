"""A job that waits for its disk: `staging_job.py DIR STEPS`. Each step reads four files, each file is read once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

BATCH, FILE_BYTES = 4, 256 << 10


def write_files(folder: Path, steps: int) -> list[Path]:
    """What the job reads in so many steps."""
    folder.mkdir()
    paths = [folder / f"{number:04d}.bin" for number in range(steps * BATCH)]
    for path in paths:
        path.write_bytes(os.urandom(FILE_BYTES))
    return paths


def main() -> None:
    import torch  # the tests import this module for its constants
    from torch.utils.data import DataLoader, Dataset

    class Files(Dataset[torch.Tensor]):
        """Reads one file, and looks at its first bytes."""

        def __init__(self, folder: Path) -> None:
            self.paths = sorted(folder.glob("*.bin"))

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.frombuffer(bytearray(self.paths[index].read_bytes()[:64]), dtype=torch.uint8).float()

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(Files(Path(sys.argv[1])), batch_size=BATCH)
    for _, batch in zip(range(int(sys.argv[2])), loader, strict=False):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
