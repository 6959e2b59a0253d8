"""Put a list of the parts of each wheel into it: CycloneDX JSON in ``.dist-info/sboms/``, as PEP 770 says.

    python scripts/release/sbom.py dist/*.whl

The parts are read from the binaries: compilers and pybind11 leave their versions in the section ``.comment``. The
runtimes of the compiler are linked into the recorder, pybind11 is headers. The same wheel gives the same bytes; a wheel
that has the list keeps it. Needs cyclonedx-python-lib and pyelftools.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import email
import hashlib
import io
import os
import re
import sys
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

from check_libraries import libraries
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from elftools.elf.elffile import ELFFile
from packageurl import PackageURL

NAME = "stashtrace.cdx.json"
#: What a compiler's name in ``.comment`` says about the parts that it links: names, license.
RUNTIMES = {
    "GCC": (("libstdc++", "libgcc"), "GPL-3.0-or-later WITH GCC-exception-3.1"),
    "clang": (("libc++", "libc++abi", "libunwind", "compiler-rt"), "Apache-2.0 WITH LLVM-exception"),
}
_COMPILER = re.compile(r"(GCC): \(.*\) (\d+(?:\.\d+)+)|(clang) version (\d+(?:\.\d+)+)")
_PYBIND11 = re.compile(r"pybind11 (\d[\w.]*)")


def parts(wheel: Path) -> dict[str, tuple[str, str]]:
    """Return what the libraries of a wheel were built with: name -> (version, license).

    Raises
    ------
    ValueError
        If the binaries do not say which compiler or which pybind11 it was.
    """
    compilers: dict[str, str] = {}
    found: dict[str, tuple[str, str]] = {}
    for text in comments(wheel):
        if match := _COMPILER.match(text):
            name, version = next((n, v) for n, v in (match.groups()[:2], match.groups()[2:]) if n)
            # Start files of the system may be of an older compiler than the objects and their runtime.
            compilers[name] = max(compilers.get(name, "0"), version, key=lambda v: tuple(map(int, v.split("."))))
        elif match := _PYBIND11.match(text):
            found["pybind11"] = (match[1], "BSD-3-Clause")
    # Objects of Clang may be linked with start files of GCC.
    name = "clang" if "clang" in compilers else "GCC"
    if name not in compilers or not found:
        raise ValueError(f"{wheel.name}: its libraries do not say what they were built with")
    runtimes, license_name = RUNTIMES[name]
    return found | dict.fromkeys(runtimes, (compilers[name], license_name))


def comments(wheel: Path) -> Iterator[str]:
    """Yield the texts in the section ``.comment`` of each shared library."""
    for _, file in libraries(wheel):
        section = ELFFile(file).get_section_by_name(".comment")
        if section is not None:
            yield from (text.decode(errors="replace") for text in section.data().split(b"\0") if text)


def bill_of_materials(wheel: Path) -> str:
    """Return the list of a wheel's parts as CycloneDX 1.6 in JSON."""
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(entry))
    package = Component(
        name=metadata["Name"],
        version=metadata["Version"],
        type=ComponentType.LIBRARY,
        bom_ref="wheel",
        purl=PackageURL("pypi", None, metadata["Name"], metadata["Version"], {"file_name": wheel.name}),
        licenses=[LicenseExpression("Apache-2.0")],
    )
    bom = Bom()
    bom.metadata.component = package
    # The same for the same wheel: reproducible builds compare bytes.
    epoch_s = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))  # else the first moment that a ZIP archive knows
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(epoch_s, datetime.timezone.utc)
    contained = []
    for name, (version, license_name) in sorted(parts(wheel).items()):
        purl = (
            PackageURL("pypi", None, name, version)
            if name == "pybind11"
            else PackageURL("generic", None, name, version)
        )
        contained.append(
            Component(
                name=name,
                version=version,
                type=ComponentType.LIBRARY,
                bom_ref=name,
                purl=purl,
                licenses=[LicenseExpression(license_name)],
            )
        )
    for name, file in libraries(wheel):
        digest = hashlib.sha256(file.read()).hexdigest()
        hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest)]
        bom.components.add(Component(name=name, type=ComponentType.FILE, bom_ref=f"file:{name}", hashes=hashes))
    for component in contained:
        bom.components.add(component)
    bom.register_dependency(package, contained)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"pkg:pypi/{wheel.name}/{sorted(map(hash_of, bom.components))}")
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    return text + "\n"


def hash_of(component: Component) -> str:
    """Return what identifies one build of a component."""
    return f"{component.name} {component.version} {[h.content for h in component.hashes]}"


def add_to(wheel: Path) -> None:
    """Rewrite a wheel with the list of its parts in it, and in its RECORD."""
    content = bill_of_materials(wheel).encode()
    written = io.BytesIO()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as new:
        (record,) = (name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        entry = f"{record.rpartition('/')[0]}/sboms/{NAME}"
        if entry in old.namelist():
            return
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        for info in old.infolist():
            if info.filename != record:
                new.writestr(info, old.read(info), info.compress_type)
        of_record = old.getinfo(record)
        added = zipfile.ZipInfo(entry, of_record.date_time)
        added.external_attr = of_record.external_attr
        new.writestr(added, content, zipfile.ZIP_DEFLATED)
        lines = old.read(record).decode().rstrip("\n")
        new.writestr(of_record, f"{lines}\n{entry},sha256={digest},{len(content)}\n", zipfile.ZIP_DEFLATED)
    beside = wheel.with_name(f".{wheel.name}.part")
    beside.write_bytes(written.getvalue())
    beside.replace(wheel)


def main() -> int:
    """Rewrite the wheels that are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    for wheel in parser.parse_args().wheels:
        try:
            add_to(wheel)
        except ValueError as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
