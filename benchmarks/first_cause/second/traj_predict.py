"""Trajectory prediction with remote feature flags and validation in training."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import os
import socket
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)


def serve_flags(sock):
    def answer(conn):
        conn.recv(64)
        time.sleep(0.009)
        conn.sendall(b'{"noise": 0.1, "flip": true}')
        conn.close()

    while True:
        conn, _ = sock.accept()
        threading.Thread(target=answer, args=(conn,), daemon=True).start()


class FlagClient:
    def __init__(self, port, hold):
        self.port, self.hold, self.last = port, hold, None

    def flags(self):
        if self.hold and self.last is not None:
            return self.last
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            s.sendall(b"GET flags")
            self.last = json.loads(s.recv(256))
        return self.last


class Predictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 96, batch_first=True)
        self.out = nn.Linear(96, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


@torch.no_grad()
def validate(net, tracks):
    total = 0.0
    for t in tracks:
        total += (net(t[:, :-1]) - t[:, 1:, :2]).pow(2).mean().item()
    return total / len(tracks)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [None]
    if rank == 0:
        sock = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=serve_flags, args=(sock,), daemon=True).start()
        box = [sock.getsockname()[1]]
    dist.broadcast_object_list(box)
    client = FlagClient(box[0], hold=rank < 2 or "1" in FIX)
    torch.manual_seed(0)
    net = Predictor()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    torch.manual_seed(rank)
    held_out = torch.randn(22, 24, 30, 4)
    times = []
    for step in range(STEPS):
        t0 = time.perf_counter()
        c = time.perf_counter()
        noise = client.flags()["noise"]
        spent["flags"] += time.perf_counter() - c
        x = torch.randn(32, 24, 4).cumsum(1)
        loss = (net(x[:, :-1] + noise * torch.randn(32, 23, 4)) - x[:, 1:, :2]).pow(2).mean()
        loss.backward()
        flat = torch.cat([p.grad.view(-1) for p in net.parameters()])
        dist.all_reduce(flat)
        opt.step()
        opt.zero_grad()
        if step % 5 == 4 and "2" not in FIX:
            score = torch.zeros(1)
            if rank == 0:
                c = time.perf_counter()
                score += validate(net, held_out)
                spent["validate"] += time.perf_counter() - c
            dist.broadcast(score, 0)
        times.append(time.perf_counter() - t0)
    finish(times)


def finish(times):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(spent))
    if dist.get_rank() == 0:
        kept = times[5:]
        keys = sorted({k for e in everyone for k in e})
        body = {
            "step_ms": round(1e3 * sum(kept) / len(kept), 2),
            "per_step_ms": {k: [round(1e3 * e.get(k, 0.0) / len(times), 2) for e in everyone] for k in keys},
        }
        print("TRUTH " + json.dumps(body), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
