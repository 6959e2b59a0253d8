"""Check the shared libraries of wheels, or of folders: which glibc they need, what else, and what they show.

    python scripts/release/check_libraries.py dist/*.whl

Exit code 1 if a library would not load on a system of the oldest glibc, if something was grafted or renamed, or if a
symbol of the recorder's C++ runtime is visible to the programs that it is loaded into. Needs pyelftools.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import Symbol, SymbolTableSection

OLDEST_GLIBC = (2, 28)
LOOKUP = "libstashtrace_lookup.so"
RECORDER = "libstashtrace.so"
#: The parts of glibc, the loader among them; the recorder needs nothing else.
GLIBC = r"(libc|libm|libdl|libpthread|librt)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+"
#: What the extension may need beyond it: on every system that manylinux is for.
NEEDED = {
    RECORDER: GLIBC,
    LOOKUP: rf"{GLIBC}|{re.escape(RECORDER)}",
    "_native": rf"{GLIBC}|{re.escape(RECORDER)}|libstdc\+\+\.so\.6|libgcc_s\.so\.1",
}
#: Newest symbols of GCC's runtimes that manylinux_2_28 may ask for.
NEWEST = {"GLIBC": OLDEST_GLIBC, "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}


def findings(name: str, file: BinaryIO) -> Iterator[str]:
    """Yield what is wrong with one library; ``name`` is that of its file."""
    kind = "_native" if name.startswith("_native.") else name
    if kind not in NEEDED:
        yield f"{name}: not one of ours; grafted?"
        return
    elf = ELFFile(file)
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                yield from (f"{name}: needs {v.name}" for v in versions if is_too_new(v.name))
        elif isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED" and not re.fullmatch(NEEDED[kind], tag.needed):
                    yield f"{name}: needs {tag.needed}"
                if tag.entry.d_tag in ("DT_RUNPATH", "DT_RPATH"):
                    path = getattr(tag, "runpath", None) or getattr(tag, "rpath", "")
                    if path != "$ORIGIN":
                        yield f"{name}: looks for libraries in {path}"
        elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            shown = [s.name for s in section.iter_symbols() if is_shown(s)]
            foreign = [symbol for symbol in shown if re.match(r"_ZN?K?S[tabsiod]|__cxa_|__gxx_|_Unwind_", symbol)]
            if kind != "_native" and foreign:
                yield f"{name}: shows {len(foreign)} symbols of the C++ runtime: {', '.join(foreign[:3])}"


def is_too_new(version: str) -> bool:
    """Return True if a symbol version, such as ``GLIBC_2.34``, is newer than what the wheels promise."""
    family, _, number = version.partition("_")
    if family not in NEWEST or not re.fullmatch(r"\d+(\.\d+)*", number):
        return False
    return tuple(map(int, number.split("."))) > NEWEST[family]


def is_shown(symbol: Symbol) -> bool:
    """Return True for a symbol that other libraries could be bound to."""
    entry = symbol.entry
    return entry.st_shndx != "SHN_UNDEF" and entry.st_info.bind in ("STB_GLOBAL", "STB_WEAK", "STB_LOOS")


def libraries(place: Path) -> Iterator[tuple[str, BinaryIO]]:
    """Yield the name and content of each shared library in a wheel or a folder."""
    if place.is_dir():
        for path in sorted(place.glob("*.so")):
            yield path.name, io.BytesIO(path.read_bytes())
        return
    with zipfile.ZipFile(place) as archive:
        for entry in sorted(archive.namelist()):
            if re.search(r"\.so(\.\d+)*$", entry):
                yield entry.rpartition("/")[2], io.BytesIO(archive.read(entry))


def check(place: Path) -> list[str]:
    """Return what is wrong with a wheel, or with the libraries that lie in a folder; a missing library too."""
    wrong: list[str] = []
    found: set[str] = set()
    for name, file in libraries(place):
        found.add("_native" if name.startswith("_native.") else name)
        wrong += findings(name, file)
    return wrong + [f"no {name}" for name in sorted(NEEDED.keys() - found)]


def main() -> int:
    """Print what is wrong, a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", type=Path, metavar="WHEEL|FOLDER")
    wrong = [f"{place.name}: {line}" for place in parser.parse_args().places for line in check(place)]
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
