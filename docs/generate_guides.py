"""Puts the output of the commands into docs/guides/gpu-traces.md, from the made-up job of tests/kineto_job.py.

python docs/generate_guides.py          # write
python docs/generate_guides.py --check  # exit 1 if the page is stale
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from stashtrace.cli import main as stashtrace

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/guides/gpu-traces.md"
#: What a kernel takes in the job called slower; the first one takes 420.
SLOWER_US = 610


def output_of(command: str) -> str:
    """What a command line prints on stdout."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = stashtrace(shlex.split(command)[1:])
    if code:
        raise SystemExit(f"{command}: exit code {code}")
    return printed.getvalue()


def refreshed(text: str) -> str:
    """The page with the output of today."""
    sys.path.insert(0, str(ROOT / "tests"))
    from kineto_job import write_job

    def block(found: re.Match[str]) -> str:
        commands = re.findall(r"^\$ (.*)$", found[1], re.M)
        if not commands:
            return found[0]
        return "```\n" + "\n".join(f"$ {command}\n{output_of(command)}" for command in commands) + "```\n"

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            write_job(Path("job"))
            write_job(Path("slower"), SLOWER_US)
            return re.sub(r"^```\n(.*?)^```\n", block, text, flags=re.S | re.M)
        finally:
            os.chdir(before)


def main(arguments: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    fresh = refreshed(text)
    if "--check" in arguments:
        return int(text != fresh)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
