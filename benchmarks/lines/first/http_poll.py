"""Linear probe; rank 0 starts a control server, rank 1 polls it before every step."""

# SPDX-License-Identifier: Apache-2.0
import http.client
import http.server
import json
import multiprocessing
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "60"))
BATCH = 256


class Control(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.035)  # a busy control plane
        body = json.dumps({"stop": False, "path": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def serve(pipe):
    server = http.server.HTTPServer(("127.0.0.1", 0), Control)
    pipe.send(server.server_port)
    server.serve_forever()


def start_server():
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    return process, ours.recv()


def should_stop(port, step):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    link.request("GET", f"/stop?step={step}")
    reply = link.getresponse()  # <- here
    answer = json.loads(reply.read())
    link.close()
    return answer["stop"]


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
        self.head = nn.Linear(512, 16)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    process, port = start_server() if os.environ["RANK"] == "0" else (None, 0)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    where = torch.tensor([port])
    dist.broadcast(where, src=0)
    port = int(where)
    torch.manual_seed(0)
    model = Probe()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(BATCH * STEPS, 512)
    loader = DataLoader(TensorDataset(x, x[:, :16].argmax(1)), batch_size=BATCH)
    spent, begin = 0.0, time.perf_counter()
    for step, (xb, yb) in enumerate(loader):
        if rank == 1:
            t0 = time.perf_counter()
            if should_stop(port, step):
                break
            spent += time.perf_counter() - t0
        loss = nn.functional.cross_entropy(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(world)
        opt.step()
    total = time.perf_counter() - begin
    sys.stderr.write(
        f"TRUTH rank={rank} planted_ms_per_step={1e3 * spent / STEPS:.1f} step_ms={1e3 * total / STEPS:.1f}\n"
    )
    dist.barrier()
    if process is not None:
        process.terminate()
        process.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
