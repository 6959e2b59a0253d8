"""All that the command line can be asked about a recording: each command answers, or refuses in one line."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from stashtrace.analysis.registry import ANALYSES
from stashtrace.cli import COMMANDS, main
from stashtrace.cli.commands.summary import FORMATS
from stashtrace.errors import DataLossWarning
from stashtrace.exporters.registry import EXPORTERS

#: Commands that ask nothing of a recording, or more than files: they start jobs, programs or servers, or ask hosts.
_OTHERS = {
    *("run", "env", "merge", "log", "capture", "metrics", "view", "bisect", "tune", "characterize", "stage"),
    *("calibrate", "doctor"),
}
#: Exit codes of an answer, and of a refusal for what is asked or recorded (docs/reference/exit-codes.md).
_ANSWERED, _REFUSED = (0, 1, 5), (4,)
_CHANGES = ("straggler=0", "data=0", "compute=x0.5", "prep=x0.5", "other=0", "ranks=16", "workers=4", "bucket_mb=4")
_EXPORTS = {"csv": ("--table", "stalls"), "parquet": ("--table", "stalls"), "arrow": ("--table", "stalls")}


def commands(path: str, other: str, folder: Path) -> Iterator[tuple[str, ...]]:
    """All commands about a recording; ``other``: one to compare it with."""
    yield from (("summary", "--format", name, path) for name in FORMATS)
    yield ("report", path, "-o", str(folder / "page.html"))
    yield ("report", path, "--format", "markdown")
    yield from (("whatif", path, "--format", name) for name in ("table", "json"))
    yield from (("whatif", path, change) for change in _CHANGES)
    yield from (("analyze", name, path) for name, _, _ in ANALYSES)
    yield from (("analyze", name, path, "--format", "json") for name in ("stalls", "late", "causes"))
    yield from (
        ("export", name, path, "-o", str(folder / f"out-{name}"), *_EXPORTS.get(name, ())) for name, _, _ in EXPORTERS
    )
    yield ("info", path)
    yield ("live", path, "--once")
    yield ("diff", other, path)
    yield ("diff", "--of", "kernels", other, path)
    yield ("check", path, "--against", other)
    yield ("check", path, "--against", other, "--fail-if", "step+5%", "--fail-if", "late+3%")
    yield ("sql", path, "select count(*) from steps")
    yield ("history", str(folder), "--add", path)
    yield ("model", path)
    yield ("layers", path)
    yield ("recommend", path)
    yield ("whatif-cache", path)
    yield ("scrub", "--all", path, "-o", str(folder / "scrubbed"))


# Where this module is imported, so that a run which selects no test of it fails, too.
assert {words[0] for words in commands("", "", Path())} | _OTHERS == {name for name, _ in COMMANDS}, (
    "a new command is asked above, or among the others"
)


def faults_of(path: Path, other: Path, folder: Path) -> tuple[list[str], int]:
    """Return what commands failed by a fault of ours, with their last lines, and the number that answered."""
    folder.mkdir(exist_ok=True)
    faults, answered_count = [], 0
    for words in commands(str(path), str(other), folder):
        code, out, err = ask(words)
        answered_count += code in _ANSWERED
        is_answer = code in (*_ANSWERED, *_REFUSED) and "bug in stashtrace" not in err and "Traceback" not in err + out
        if not is_answer or "a fault of stashtrace" in out + err or (code not in _ANSWERED and "error: " not in err):
            faults.append(f"{' '.join(words)}: exit code {code}: {(err or out)[-600:]}")
    return faults, answered_count


def ask(words: Sequence[str]) -> tuple[int, str, str]:
    """Run one command line in this process; return its exit code and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("default", DataLossWarning)  # a separate line for a user, an error in tests
        try:
            code = main(list(words))
        except SystemExit as left:
            code = int(left.code or 0)
    return code, out.getvalue(), err.getvalue()
