"""Sentence-pair scoring; the lead rank tells a dashboard how it goes."""

# SPDX-License-Identifier: Apache-2.0
import http.server
import json
import os
import threading
import time
import urllib.request

import torch
import torch.distributed as dist
import torch.nn.functional as F

STEPS = int(os.environ.get("STEPS", 50))
FIX = os.environ.get("FIX", "")


class Dashboard(http.server.BaseHTTPRequestHandler):
    """Stands for the team's metrics service."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.02)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *a):
        pass


class Courier:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/points"
        self.held = []

    def report(self, **point):
        if "1" in FIX:
            self.held.append(point)
            if len(self.held) < 50:
                return
            point = {"many": self.held}
            self.held = []
        body = json.dumps(point).encode()
        req = urllib.request.Request(self.url, data=body, method="POST")
        with urllib.request.urlopen(req, timeout=5) as r:
            r.read()


class Scorer(torch.nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.emb = torch.nn.Embedding(4000, dim)
        self.enc = torch.nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.out = torch.nn.Linear(2 * dim, 1)

    def forward(self, a, b):
        a, b = self.enc(self.emb(a)).mean(1), self.enc(self.emb(b)).mean(1)
        return self.out(torch.cat([a, b], -1)).squeeze(-1)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    courier = None
    if rank == 0:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        courier = Courier(server.server_address[1])
    torch.manual_seed(5)
    model = torch.nn.parallel.DistributedDataParallel(Scorer())
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    durations = []
    for step in range(STEPS):
        t = time.perf_counter()
        a, b = torch.randint(0, 4000, (2, 12, 32))
        y = torch.rand(12)
        loss = F.mse_loss(model(a, b), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if courier:
            courier.report(step=step, loss=loss.item())
            courier.report(step=step, seconds=time.perf_counter() - t)
        durations.append(time.perf_counter() - t)
    if rank == 0:
        print(f"mean step {1e3 * sum(durations[2:]) / (STEPS - 2):.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
