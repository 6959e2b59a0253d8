"""Start the ranks of a job, each possibly in a separate network namespace; torchrun without its import of torch.

    python launch_ranks.py [--namespaces A,B --addresses 10.77.0.1,10.77.0.2 --interfaces vA,vB] -- python train.py ...

Ends with the first rank's failure, or 0. A separate program, so that `stashtrace run --` can wrap it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from ports import free_port


def main() -> int:
    """Start, wait, and end the others when one fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--namespaces", default="")
    parser.add_argument("--addresses", default="127.0.0.1")
    parser.add_argument("--interfaces", default="lo")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[0] == "--" else options.command
    namespaces = [name for name in options.namespaces.split(",") if name]
    addresses, interfaces = options.addresses.split(","), options.interfaces.split(",")
    port = 29500 if namespaces else free_port()

    ranks = []
    for rank in range(options.ranks):
        environment = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(options.ranks),
            OMP_NUM_THREADS="1",
            MASTER_ADDR=addresses[0],
            MASTER_PORT=str(port),
            GLOO_SOCKET_IFNAME=interfaces[rank % len(interfaces)],
        )
        prefix = ["ip", "netns", "exec", namespaces[rank]] if namespaces else []
        ranks.append(subprocess.Popen([*prefix, *command], env=environment))
    code = 0
    for process in ranks:
        code = code or process.wait()
        if code:
            for other in ranks:
                other.terminate()
    return code


if __name__ == "__main__":
    sys.exit(main())
