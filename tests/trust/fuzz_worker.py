"""Damages seeds and reads them: info, summary, timeline, merge; each input in a forked child with limits.

    python tests/trust/fuzz_worker.py FORMAT[,FORMAT...] SEED COUNT FOLDER [--bytes N]

One line of JSON per format on stdout: inputs, refused, read, the bindings that read them, and the findings. An input
is a finding if anything but a StashtraceError comes out, if it ends its process (a sanitizer does) or passes the limits
of CPU time and memory; it is kept under FOLDER/found with what was said, and named by format, seed and number, from
which it can be made again.
Under AddressSanitizer, whose shadow is larger than any limit of address space, an option limits memory.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
import zlib
from pathlib import Path
from typing import Any

from fuzz_inside import changed_columns, changed_inside
from fuzz_seeds import FORMATS, random_rows

import stashtrace._native
from stashtrace.cli import main as cli
from stashtrace.errors import MissingDataError, StashtraceError

CPU_LIMIT_S = 20
WALL_LIMIT_S = 240  # against hanging alone; a busy machine is not a finding
REFUSED, FOUND = 10, 20
#: They import what need not be installed.
LAZY = ("stashtrace.exporters.store", "stashtrace.importers.darshan.child")
#: Formats of several files, each seed a folder.
FOLDERS = ("stash", "store")
ODD_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
ODD_TEXTS = (
    *(b"-1", b"0", b"1e999", b"NaN", b"null", b"[]", b"{}", b'""', b"9223372036854775807", b"-9223372036854775809"),
    *(b"18446744073709551616", b"1e-400", b'"\\ud800"', b"[[[[[[[[[[]]]]]]]]]]", b"true", b"9" * 400),
)


def damaged_bytes(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """One of the usual damages at a random place."""
    at = rng.randrange(len(data)) if data else 0
    kind = rng.randrange(8)
    if kind == 0 and data:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        size = rng.choice([1, 2, 4, 8])
        at -= at % size
        data[at : at + size] = (rng.choice(ODD_NUMBERS) % 256**size).to_bytes(size, "little")
    elif kind == 2:
        del data[at : at + rng.randint(1, 64)]
    elif kind == 3:
        data[at:at] = rng.randbytes(rng.randint(1, 64))
    elif kind == 4:
        del data[at:]
    elif kind == 5:
        end = at + rng.randint(1, 256)
        data[at:at] = data[at:end]
    elif kind == 6 and other:
        start = rng.randrange(len(other))
        data[at : at + 64] = other[start : start + rng.randint(1, 256)]
    else:
        data[at : at + 8] = bytes(8)
    return data


def damaged_text(data: bytearray, rng: random.Random) -> bytearray:
    """Another value in the place of one of JSON."""
    values = list(re.finditer(rb'(?<=[:,\[ ])(-?[0-9][0-9.e+-]*|"[^"\\]{0,40}"|true|false|null)', data[:100_000]))
    if values:
        chosen = rng.choice(values)
        data[chosen.start() : chosen.end()] = rng.choice(ODD_TEXTS)
    return data


def damage(data: bytes, rng: random.Random, other: bytes) -> bytes:
    """One to four damages; of gzip mostly to what is inside."""
    packed = data[:2] == b"\x1f\x8b" and rng.random() < 0.7
    changed = bytearray(gzip.decompress(data) if packed else data)
    texts = changed[:1].strip() in (b"{", b"[") or b'{"' in changed[:64]
    for _ in range(rng.choice([1, 1, 2, 4])):
        changed = damaged_text(changed, rng) if texts and rng.random() < 0.6 else damaged_bytes(changed, rng, other)
    return gzip.compress(bytes(changed), 1) if packed else bytes(changed)


def make_input(kind: str, seed: int, number: int, seeds: Path, folder: Path) -> Path:
    """Input ``number`` of a seed, in an empty folder; what is to be opened: a file, or the folder of a run."""
    rng = random.Random(f"{kind} {seed} {number}")
    shutil.rmtree(folder, ignore_errors=True)
    if kind == "stash" and rng.random() < 0.3:
        random_rows(folder, rng)
        return folder
    if kind not in FOLDERS:
        folder.mkdir(parents=True)
        chosen, other = (rng.choice(sorted(path for path in seeds.iterdir() if path.is_file())) for _ in range(2))
        (folder / chosen.name).write_bytes(damage(chosen.read_bytes(), rng, other.read_bytes()))
        return folder / chosen.name
    shutil.copytree(rng.choice(undamaged(kind, seeds)), folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for _ in range(rng.choice([1, 1, 1, 3])):
        chosen, other = rng.choice(files), rng.choice(files)
        changed = None
        if rng.random() < 0.6:
            if chosen.suffix == ".stash":
                whole = bytearray(other.read_bytes())
                changed = changed_inside(
                    chosen,
                    rng,
                    lambda data: damaged_text(data, rng),
                    lambda data, whole=whole: damaged_bytes(data, rng, whole),  # type: ignore[misc]
                )
            elif chosen.suffix == ".parquet":
                changed = changed_columns(chosen, rng)
        chosen.write_bytes(damage(chosen.read_bytes(), rng, other.read_bytes()) if changed is None else changed)
    return folder


def read_everything(path: Path, out: Path) -> int:
    """Describe, sum up, export, and merge what is a run; 0, or REFUSED where it is refused as it should be.

    Other exceptions go through.
    """
    commands = [
        ["info", str(path)],
        ["analyze", "summary", str(path)],
        ["export", "perfetto", str(path), "-o", str(out)],
    ]
    if any(path.glob("*.stash")):  # packed again, into a separate place; the input stays what it was
        shutil.rmtree(out.with_suffix(".merged"), ignore_errors=True)
        commands.append(["merge", str(path), "--out", str(out.with_suffix(".merged"))])
    for words in commands:
        try:
            code = cli(["--debug", *words])
        except MissingDataError:
            if words[0] != "export":  # a trace without times has no timeline, and is read all the same
                return REFUSED
            continue
        except StashtraceError:
            return REFUSED
        except SystemExit as ended:
            raise AssertionError(f"SystemExit({ended.code}) of {words}") from ended
        if code not in (0, 4):
            raise AssertionError(f"exit code {code} of {words}")
    return 0


def in_child(path: Path, said: Path, out: Path, memory_bytes: int) -> int:
    """Read an input in a forked child; its status as waitpid gives it."""
    child = os.fork()
    if child == 0:
        stream = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
        if memory_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        code = FOUND
        try:
            code = read_everything(path, out)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + WALL_LIMIT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]
        time.sleep(0.002)


def meaning(status: int, said: str) -> str:
    """Why a status is a finding, empty if it is none; the last line of a traceback distinguishes findings."""
    code = os.waitstatus_to_exitcode(status)
    if code in (0, REFUSED):
        return ""
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL):
        return f"no end within {CPU_LIMIT_S} s of CPU time or {WALL_LIMIT_S} s"
    report = re.search(r"(ERROR: AddressSanitizer: \S+|runtime error: .*)", said)
    if report:
        return report[1]
    lines = said.strip().splitlines() or ["nothing said"]
    frames = re.findall(r'File "[^"]*?(stashtrace/[^"]+)", line (\d+)', said)
    return f"{lines[-1][:200]} at {':'.join(frames[-1]) if frames else 'unknown'} (exit {code})"


def load_modules() -> None:
    """Import what readers import when they first need it: once here, and not again in each child."""
    for room in ("loading", "analysis", "collectors", "timeline", "exporters", "importers", "summary"):
        for found in pkgutil.walk_packages([str(Path(stashtrace.__file__).parent / room)], f"stashtrace.{room}."):
            if found.name not in LAZY:
                importlib.import_module(found.name)


def undamaged(kind: str, seeds: Path) -> list[Path]:
    """The seeds that can be opened as they are."""
    paths = sorted(path for path in seeds.iterdir() if path.name != "head.darshan")
    return [path for path in paths if path.is_dir() == (kind in FOLDERS)]


def fuzz(kind: str, seed: int, count: int, folder: Path, memory_bytes: int) -> dict[str, Any]:
    """Read ``count`` damaged files of one format; what came of them."""
    seeds, kept = folder / "seeds", folder / "found"
    shutil.rmtree(seeds, ignore_errors=True)
    seeds.mkdir(parents=True)
    FORMATS[kind](seeds)
    said, out = folder / "said.txt", folder / "out.pftrace"
    result: dict[str, Any] = {"format": kind, "seed": seed, "inputs": 0, "read": 0, "refused": 0}
    findings: dict[str, list[str]] = {}
    whole = undamaged(kind, seeds)
    result["seeds"], result["bindings"] = len(whole), stashtrace._native.__file__
    result["seeds_read"] = sum(in_child(path, said, out, memory_bytes) == 0 for path in whole)
    for number in range(count):
        path = make_input(kind, seed, number, seeds, folder / "input")
        status = in_child(path, said, out, memory_bytes)
        text = said.read_text(encoding="utf-8", errors="replace")
        why = meaning(status, text)
        result["inputs"] += 1
        result["read"] += status == 0
        result["refused"] += os.waitstatus_to_exitcode(status) == REFUSED
        if why:
            name = f"{kind}-{seed}-{number}-{zlib.crc32(why.encode()):08x}"
            if len(findings.setdefault(why, [])) < 3:
                place = kept / name
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(folder / "input", place)
                (kept / f"{name}.txt").write_text(text, encoding="utf-8")
            findings[why].append(name)
    result["findings"] = {why: [len(names), names[0]] for why, names in findings.items()}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", help=f"of {', '.join(FORMATS)}; separated by commas")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bytes", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    load_modules()
    for kind in options.kinds.split(","):
        print(json.dumps(fuzz(kind, options.seed, options.count, options.folder / kind, options.bytes)), flush=True)


if __name__ == "__main__":
    main()
