"""The files of the project in a checkout that may hold runs, reports and baselines of its user as well."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LEFT = {".git", ".venv", "build", "dist", "__pycache__", ".cache", "stashtrace.egg-info", "PKG-INFO", "setup.cfg"}


def project_files() -> list[str]:
    """Return the paths relative to the checkout that git tracks, and new files in the folders that an sdist takes.

    In an unpacked sdist, which has no git, these are all files but what tools write.
    """
    if tracked := _git_files("--cached"):
        manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
        taken = [line.removeprefix("graft ") for line in manifest if line.startswith("graft ")]
        names = {*tracked, *_git_files("--others", "--exclude-standard", "--", *taken)}
        return sorted(name for name in names if (ROOT / name).is_file())
    files = (p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file() and p.suffix not in (".so", ".pyc"))
    return sorted(str(path) for path in files if not _LEFT & set(path.parts))


def _git_files(*options: str) -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z", *options], cwd=ROOT, capture_output=True, text=True, check=False)
    return [name for name in done.stdout.split("\0") if name] if done.returncode == 0 else []
