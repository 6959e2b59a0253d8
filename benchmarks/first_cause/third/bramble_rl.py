"""bramble_rl: policy network for a small board game, with arena matches on the side."""

# SPDX-License-Identifier: Apache-2.0
import os
import random
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)

STEPS = int(os.environ.get("STEPS", "40"))
FIX = os.environ.get("FIX", "")
SIDE = 9


class Arena:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.stop = threading.Event()
        self.scores = []
        self.thread = threading.Thread(target=self._run, name="arena", daemon=True)

    def start(self):
        self.thread.start()

    def close(self):
        self.stop.set()
        self.thread.join()

    def _play(self):
        board = [0] * (SIDE * SIDE)
        turn = 1
        for _ in range(60):
            free = [i for i, v in enumerate(board) if v == 0]
            best = max(free, key=lambda i: self._value(board, i, turn) + self.random.random())
            board[best] = turn
            turn = -turn
        return sum(board)

    def _value(self, board, at, turn):
        row, column = divmod(at, SIDE)
        score = 0
        for dr in (-1, 0, 1):
            for dc in (-1, 0, 1):
                r, c = row + dr, column + dc
                if 0 <= r < SIDE and 0 <= c < SIDE:
                    score += board[r * SIDE + c] * turn
        return score

    def _run(self):
        while not self.stop.is_set():
            self.scores.append(self._play())
            self.stop.wait(0.02)


class Policy(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(2, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.policy = nn.Linear(width * SIDE * SIDE, SIDE * SIDE)
        self.value = nn.Linear(width * SIDE * SIDE, 1)

    def forward(self, board):
        h = self.trunk(board).flatten(1)
        return self.policy(h), torch.tanh(self.value(h)).squeeze(-1)


def replay(generator, batch=128):
    board = torch.randint(0, 2, (batch, 2, SIDE, SIDE), generator=generator).float()
    move = torch.randint(0, SIDE * SIDE, (batch,), generator=generator)
    outcome = torch.randint(0, 2, (batch,), generator=generator).float() * 2 - 1
    return board, move, outcome


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(Policy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    generator = torch.Generator().manual_seed(rank)
    arena = Arena(rank)
    if rank == 1 and "1" not in FIX:
        arena.start()
    ticks = []
    for _step in range(STEPS):
        board, move, outcome = replay(generator)
        logits, value = model(board)
        loss = nn.functional.cross_entropy(logits, move) + nn.functional.mse_loss(value, outcome)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ticks.append(time.perf_counter())
    if arena.thread.is_alive():
        arena.close()
    if rank == 0:
        print(f"bramble_rl: mean step {(ticks[-1] - ticks[5]) / (len(ticks) - 6) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
