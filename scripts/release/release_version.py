"""Check that a tag, pyproject.toml, the package, the action and the changelog name one version.

    python scripts/release/release_version.py v0.2.0

Exit code 1, with a line per file that says otherwise.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: File -> where its version stands.
PLACES = {
    "pyproject.toml": r'^version = "([^"]+)"$',
    "stashtrace/__init__.py": r'^__version__ = "([^"]+)"$',
    "csrc/runtime/version.h": r'kVersion\[\] = "([^"]+)"',
    "ci/action.yml": r'^    default: "(\d[^"]*)"$',
    "CHANGELOG.md": r"^## (\S+) \(",
}


def disagreements(tag: str, root: Path = ROOT) -> list[str]:
    """Return what differs from a tag, ``v`` and the version; of the changelog the newest entry counts."""
    if not re.fullmatch(r"v\d+\.\d+\.\d+((a|b|rc)\d+)?", tag):
        return [f"{tag} is not a tag of a release such as v1.2.3 or v1.2.3rc1"]
    found = {name: re.search(at, (root / name).read_text(encoding="utf-8"), re.M) for name, at in PLACES.items()}
    stated = {name: match[1] if match else "no version" for name, match in found.items()}
    return [f"{name}: {version}, not {tag[1:]}" for name, version in stated.items() if version != tag[1:]]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    wrong = disagreements(sys.argv[1])
    sys.stderr.writelines(f"error: {line}\n" for line in wrong)
    raise SystemExit(1 if wrong else 0)
