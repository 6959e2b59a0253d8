"""Actor-critic with one simulator process per rank."""

# SPDX-License-Identifier: Apache-2.0
import collections
import json
import multiprocessing as mp
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
FIX = os.environ.get("FIX", "0")
STEPS = int(os.environ.get("STEPS", "40"))
spent = collections.defaultdict(float)
OBS, ACT, HORIZON = 64, 6, 6


def simulator(pipe, vsync):
    rng = np.random.default_rng(os.getpid())
    state = rng.standard_normal((48, OBS)).astype(np.float32)
    while True:
        action = pipe.recv()
        if action is None:
            return
        state = 0.95 * state + 0.1 * rng.standard_normal(state.shape).astype(np.float32)
        state[:, 0] += action
        if vsync:
            time.sleep(1 / vsync)
        pipe.send((state, -np.abs(state[:, 0])))


class RemoteEnv:
    def __init__(self, vsync):
        self.pipe, other = mp.Pipe()
        self.proc = mp.get_context("fork").Process(target=simulator, args=(other, vsync), daemon=True)
        self.proc.start()

    def step(self, action):
        c = time.perf_counter()
        self.pipe.send(action)
        got = self.pipe.recv()
        spent["env"] += time.perf_counter() - c
        return got

    def close(self):
        self.pipe.send(None)
        self.proc.join()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
        self.pi, self.v = nn.Linear(256, ACT), nn.Linear(256, 1)

    def forward(self, o):
        h = self.body(o)
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def main():
    rank = int(os.environ["RANK"])
    env = RemoteEnv(vsync=240 if rank == 1 and "1" not in FIX else 0)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Policy()
    opt = torch.optim.Adam(net.parameters(), 3e-4)
    obs, _ = env.step(np.zeros(48, np.float32))
    times = []
    for update in range(STEPS):
        t0 = time.perf_counter()
        logp, value, reward = [], [], []
        for t in range(HORIZON):
            pi, v = net(torch.from_numpy(obs))
            a = pi.sample()
            obs, r = env.step((a.numpy() - 2.5).astype(np.float32) * 0.05)
            logp.append(pi.log_prob(a))
            value.append(v)
            reward.append(torch.from_numpy(r))
        ret = torch.stack(reward).flip(0).cumsum(0).flip(0)
        adv = ret - torch.stack(value)
        loss = -(torch.stack(logp) * adv.detach()).mean() + adv.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        flat = nn.utils.parameters_to_vector([p.grad for p in net.parameters()])
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / dist.get_world_size(), [p.grad for p in net.parameters()])
        opt.step()
        times.append(time.perf_counter() - t0)
    env.close()
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
