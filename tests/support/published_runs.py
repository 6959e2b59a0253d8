"""Published times of training, and characterizations made of them, for tests of models and for a guide.

HKBU-HPML/ddl-benchmarks, results of 2020-05-29: samples per second (and standard deviation) with 1, 4, 8, 16 and 32
V100 PCIe of 32 GB, four in a host, so steps 1, 2 and 5 are its first three columns. Nobody there measured loading.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: (model, batch of a GPU, samples/s of one).
MODELS = {"resnet50": (64, 253.1), "bert-base": (64, 212.8), "bert-large": (8, 49.0)}
#: (model, network, method) -> ((samples/s, standard deviation) of 4, 8, 16, 32 GPUs).
RUNS: dict[tuple[str, str, str], tuple[tuple[float, float], ...]] = {
    ("resnet50", "10GbE", "BSP-A2A"): ((925.02, 4.42), (1282.28, 1.94), (2485.12, 4.27), (4920.82, 4.43)),
    ("resnet50", "10GbE", "WFBP-A2A"): ((1015.40, 1.26), (1795.74, 2.67), (3146.78, 4.72), (5113.18, 14.01)),
    ("resnet50", "10GbE", "MG-WFBP"): ((1003.18, 2.42), (1980.58, 3.20), (3784.98, 7.18), (6883.60, 12.72)),
    ("bert-large", "10GbE", "BSP-A2A"): ((53.04, 0.12), (28.96, 0.08), (54.30, 0.06), (105.10, 0.23)),
    ("bert-large", "10GbE", "WFBP-A2A"): ((56.04, 0.08), (29.06, 0.05), (53.42, 0.07), (101.96, 0.10)),
    ("bert-large", "10GbE", "MG-WFBP"): ((57.34, 0.30), (30.04, 0.05), (54.26, 0.10), (105.02, 0.21)),
    ("bert-base", "10GbE", "BSP-A2A"): ((555.52, 2.22), (518.94, 0.55), (984.88, 1.17), (1926.64, 4.08)),
    ("bert-base", "10GbE", "WFBP-A2A"): ((634.10, 0.88), (582.26, 1.63), (1069.48, 1.87), (2013.38, 1.34)),
    ("bert-base", "10GbE", "MG-WFBP"): ((659.06, 1.11), (611.44, 1.70), (1153.18, 0.85), (1925.78, 4.03)),
    ("resnet50", "100GbIB", "BSP-A2A"): ((920.28, 2.68), (1821.20, 4.28), (3602.90, 7.03), (7126.52, 15.78)),
    ("resnet50", "100GbIB", "WFBP-A2A"): ((1014.28, 1.13), (2017.12, 3.96), (3946.06, 11.07), (7326.56, 12.13)),
    ("resnet50", "100GbIB", "MG-WFBP"): ((1003.90, 1.07), (2001.72, 3.97), (3987.40, 6.04), (7876.46, 14.15)),
    ("bert-large", "100GbIB", "BSP-A2A"): ((53.08, 0.07), (99.18, 0.58), (191.64, 0.85), (375.22, 1.19)),
    ("bert-large", "100GbIB", "WFBP-A2A"): ((56.30, 0.22), (101.68, 0.17), (185.42, 0.47), (339.82, 0.89)),
    ("bert-large", "100GbIB", "MG-WFBP"): ((57.50, 0.23), (106.78, 0.32), (205.78, 0.77), (400.16, 1.88)),
    ("bert-base", "100GbIB", "BSP-A2A"): ((555.70, 3.68), (1082.42, 3.89), (2112.96, 13.72), (4184.38, 16.23)),
    ("bert-base", "100GbIB", "WFBP-A2A"): ((631.80, 3.78), (1195.68, 2.29), (2217.22, 6.20), (4098.68, 4.94)),
    ("bert-base", "100GbIB", "MG-WFBP"): ((660.42, 2.29), (1235.04, 8.64), (2515.30, 10.77), (4940.08, 6.85)),
}
COUNTS = (4, 8, 16, 32)
#: Iteration times in seconds, compute alone and as WFBP, single message, MG-WFBP, and the exposed share of each in per
#: cent: plotting script of the MG-WFBP paper (Shi et al., TPDS 2021; HKBU-HPML/MG-WFBP).
MG_WFBP = {
    "resnet152 10gbe fp32": (0.8831, (1.2334, 1.3601, 1.1261), (28, 35, 22)),
    "resnet152 10gbe fp16": (0.3886, (0.7571, 0.6363, 0.6297), (49, 39, 38)),
    "resnet152 ib fp32": (0.8831, (1.0821, 1.1435, 1.0893), (18, 23, 19)),
    "resnet152 ib fp16": (0.3886, (0.5310, 0.5182, 0.4863), (27, 25, 20)),
    "inception4 10gbe fp32": (0.6108, (0.9437, 0.9000, 0.7806), (35, 32, 22)),
    "inception4 10gbe fp16": (0.2797, (0.5910, 0.4771, 0.4232), (53, 41, 34)),
    "inception4 ib fp32": (0.6108, (0.7674, 0.7462, 0.6613), (20, 18, 8)),
    "inception4 ib fp16": (0.2797, (0.4302, 0.3732, 0.3638), (35, 25, 23)),
    "densenet161 10gbe fp32": (0.4777, (0.8324, 0.6826, 0.6280), (43, 30, 24)),
    "densenet161 10gbe fp16": (0.2530, (0.6149, 0.3994, 0.3604), (59, 37, 30)),
    "densenet161 ib fp32": (0.4777, (0.6019, 0.5968, 0.5274), (21, 20, 9)),
    "densenet161 ib fp16": (0.2530, (0.4000, 0.3300, 0.3211), (37, 23, 21)),
    "densenet201 10gbe fp32": (0.3609, (0.7636, 0.5128, 0.4566), (53, 30, 21)),
    "densenet201 10gbe fp16": (0.2152, (0.6142, 0.4065, 0.3618), (65, 47, 41)),
    "densenet201 ib fp32": (0.3609, (0.5124, 0.4378, 0.4059), (30, 18, 11)),
    "densenet201 ib fp16": (0.2152, (0.3977, 0.3544, 0.3313), (46, 39, 35)),
}
#: The hosts of the table, and two of the same device that nobody ran. Prices are made up.
CATALOG = """\
version = 1

[defaults]
device = "V100-PCIE-32GB"
currency = "USD"
priced_on = 2020-05-29
source = "made up for this page"

[instance.node4]
devices_count = 4
interconnect = "pcie"
network_bits_per_s = 10_000_000_000
price_per_hour = 8.00

[instance.node4-100g]
devices_count = 4
interconnect = "pcie"
network_bits_per_s = 100_000_000_000
price_per_hour = 9.00

[instance.node1]
devices_count = 1
network_bits_per_s = 10_000_000_000
price_per_hour = 2.00
"""


def step_ns(samples: float, rate: float, deviation: float) -> dict[str, Any]:
    """A step of some samples, with two standard deviations to each side."""
    low, value, high = (samples / r * 1e9 for r in (rate + 2 * deviation, rate, rate - 2 * deviation))
    bounds = {"value_ns": round(value), "low_ns": round(low), "high_ns": round(high)}
    return {**bounds, "status": "measured", "why": "", "runs": []}


def characterization(model: str, network: str, method: str) -> dict[str, Any]:
    """What ``stashtrace characterize`` would have written there."""
    batch, single = MODELS[model]
    four, eight, *_ = RUNS[model, network, method]
    missing = dict.fromkeys(("value_ns", "low_ns", "high_ns")) | {"status": "not measured", "why": "not published"}
    return {
        "format": 1,
        "command": [f"{model}, {method}, {network}: HKBU-HPML/ddl-benchmarks, results of 2020-05-29"],
        "created": "2020-05-29",
        "machine": {"cpu": "", "cores_count": 0, "memory_bytes": 0, "devices": ["Tesla V100-PCIE-32GB"]},
        "instance": "node4",
        "device": "gpu",
        "devices_count": 4,
        "network_hosts_count": 2,
        "network": {"emulated": False, "rate_bits_per_s": 0, "latency_ns": 0, "devices_count": 8},
        "batch_samples": batch,
        "gradients": {"tensors_count": 0, "bytes": 0, "messages_count": 0},
        "steps": {
            "t1_ns": step_ns(batch, single, 0.025),  # half of the last digit printed, as two deviations
            "t2_ns": step_ns(4 * batch, *four),
            "t3_ns": missing,
            "t4_ns": missing,
            "t5_ns": step_ns(8 * batch, *eight),
        },
        "stalls": {},
        "attribution": {},
        "disagreements": [],
        "quick": False,
        "emulated": False,
        "notes": ["made of published throughputs, not of a run"],
    }


def write_published(folder: Path, model: str = "bert-base", network: str = "10GbE", method: str = "WFBP-A2A") -> None:
    """The files of the guide: a characterization and a catalog of its hosts."""
    text = json.dumps(characterization(model, network, method), indent=1)
    (folder / "characterization.json").write_text(text + "\n", encoding="utf-8")
    (folder / "nodes.toml").write_text(CATALOG, encoding="utf-8")
