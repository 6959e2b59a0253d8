"""The environment that turns an ordinary command into a traced one.

Pure: it takes a mapping and returns a new one; it starts
nothing and leaves the caller's environment alone. The variables are all that the launcher passes to the traced
processes; values of the user stay behind ours.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from stashtrace.errors import BUILD_HINT, CaptureError, OutputError
from stashtrace.files.whole_files import others_may_rename, whole_file
from stashtrace.record.options import DEFAULT_OPTIONS, RecordOptions

_PACKAGE = Path(__file__).resolve().parents[1]
LIBRARY_PATH = _PACKAGE / "libstashtrace.so"
#: Preloaded too with ``lookup_hook``: stands in front of dlsym.
LOOKUP_LIBRARY = "libstashtrace_lookup.so"
INJECT_PATH = _PACKAGE / "probes" / "inject"
#: The loader splits LD_PRELOAD at both and knows no quoting.
_SEPARATORS = frozenset(" :")


def traced_environment(
    base: Mapping[str, str],
    options: RecordOptions = DEFAULT_OPTIONS,
    *,
    run_dir: str | os.PathLike[str],
    run_id: str,
    library: str | os.PathLike[str] | None = None,
    package: Path | None = None,
) -> dict[str, str]:
    """Return a copy of ``base`` in which every process of the command records itself.

    ``base``: environment of the command without tracing; its LD_PRELOAD and PYTHONPATH are kept behind ours, and so is
    a profiler plugin of NCCL that it names. ``options``: what is recorded. ``run_dir``: where the processes write; made
    absolute, since they may change their directory. ``run_id``: hexadecimal name of the run, stored in every file.
    ``library``: runtime library to preload, the package's by default. ``package``: a copy of its part for traced
    processes (:func:`copy_guest_part`) that stands for it. Raises UsageError, FormatError as
    :meth:`RecordOptions.to_environment`. Raises CaptureError if the library is missing, or LD_PRELOAD cannot name it.
    """
    inject = INJECT_PATH if package is None else package / INJECT_PATH.relative_to(_PACKAGE)
    if ":" in str(inject):
        raise CaptureError(
            f"the path {inject} holds a colon, which PYTHONPATH cannot name",
            hint="install stashtrace into a folder without colons",
        )
    if library is None:
        library = LIBRARY_PATH if package is None else package / LIBRARY_PATH.name
    library = Path(library)
    preload = preload_path(library)
    environment = options.to_environment(base)
    preloaded = _prepend(preload, base.get("LD_PRELOAD", "").replace(" ", ":"))
    if options.lookup_hook:
        lookup = preload_path(library.with_name(LOOKUP_LIBRARY))
        preloaded = _prepend(preload, _prepend(lookup, preloaded))
    environment["LD_PRELOAD"] = preloaded
    environment["PYTHONPATH"] = _prepend(str(inject), base.get("PYTHONPATH", ""))
    environment["STASHTRACE_DIR"] = str(Path(run_dir).absolute())
    environment["STASHTRACE_RUN_ID"] = run_id
    if "nccl" in options.recorded_collectors():
        # Make our library NCCL's profiler plugin; it passes every event on to the plugin that the job had
        former = environment.get("NCCL_PROFILER_PLUGIN", "")
        if former != preload:  # a traced command that traces another keeps its settings
            environment.pop("STASHTRACE_NCCL_CHAIN", None)
            if former:
                environment["STASHTRACE_NCCL_CHAIN"] = former
        environment["NCCL_PROFILER_PLUGIN"] = preload
    return environment


#: What traced processes need of this package: the libraries, and Python that needs no other package.
_GUEST_PART = (
    *("__init__.py", "callbacks.py", "py.typed", "probes"),
    "scrubbing/secrets.py",  # the probe of exceptions loads it by its path
    *(LIBRARY_PATH.name, LOOKUP_LIBRARY),
)


def copy_guest_part(folder: Path) -> Path:
    """Copy what traced processes need into ``folder``, for containers without this package; return its package there.

    An older copy is replaced. Raises OutputError if the folder cannot be written.
    """
    target = folder / _PACKAGE.name
    parts = [_PACKAGE / name for name in _GUEST_PART]
    files = [path for part in parts for path in ([part] if part.is_file() else sorted(part.rglob("*.py")))]
    try:
        for file in files:
            copy = target / file.relative_to(_PACKAGE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            # In one step: a process that runs may have the older library mapped.
            with whole_file(copy) as partial:
                partial.write_bytes(file.read_bytes())
    except OSError as error:
        raise OutputError(f"cannot copy the recorder to {target}: {error.strerror}") from error
    return target


def without_library(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose programs start without our libraries: neither preloaded nor as NCCL's plugin.

    Preloads of others keep their order, and NCCL gets the plugin that the job had.
    """
    kept = dict(environment)
    preload = [part for part in kept.pop("LD_PRELOAD", "").replace(" ", ":").split(":") if part]
    if others := [part for part in preload if not _is_ours(part)]:
        kept["LD_PRELOAD"] = ":".join(others)
    if _is_ours(kept.get("NCCL_PROFILER_PLUGIN", "")):
        del kept["NCCL_PROFILER_PLUGIN"]
        if chain := kept.get("STASHTRACE_NCCL_CHAIN"):
            kept["NCCL_PROFILER_PLUGIN"] = chain
    return kept


def untraced_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which nothing of ours records or is configured."""
    return {k: v for k, v in without_library(environment).items() if not k.startswith("STASHTRACE_")}


def _is_ours(library: str) -> bool:
    return Path(library).name in (LIBRARY_PATH.name, LOOKUP_LIBRARY)


def _prepend(first: str, old: str) -> str:
    """Put ``first`` in front of a colon-separated list that may hold it already: a traced command may trace another."""
    # An empty entry of PYTHONPATH means the current directory, so it must survive.
    return ":".join([first, *(part for part in (old.split(":") if old else []) if part != first)])


def preload_path(library: str | os.PathLike[str]) -> str:
    """Return a path of the library that LD_PRELOAD can name.

    A library in a folder with a blank or a colon gets a link in a folder of the user's own, in the cache or else among
    temporary files. The link stays, since processes of the job may start others after the command has ended. Raises
    CaptureError if the library is missing, or no folder without a blank can be used.
    """
    path = Path(library).absolute()
    if not path.is_file():
        raise CaptureError(f"{path.name} is not in {path.parent}", hint=BUILD_HINT)
    if not _SEPARATORS & set(str(path)):
        return str(path)
    folder_name = hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for folder in (
        Path(cache) / "stashtrace" / folder_name,
        Path(tempfile.gettempdir()) / f"stashtrace-{os.getuid()}-{folder_name}",
    ):
        if folder.is_absolute() and not _SEPARATORS & set(str(folder)) and _is_own_folder(folder):
            link = folder / path.name
            if _links_to(link, path):
                return str(link)
    raise CaptureError(
        f"the path {path} holds a colon or a blank, which LD_PRELOAD cannot name, and no link to it could be made",
        hint="set XDG_CACHE_HOME to a folder that can be written, or install stashtrace into a folder without blanks",
    )


def _is_own_folder(folder: Path) -> bool:
    """Make the folder; True if nobody else can put a library there."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if others_may_rename(folder.parent):
            return False
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _links_to(link: Path, path: Path) -> bool:
    """Make the link, or replace one that leads elsewhere; another process may do the same."""
    try:
        if os.path.lexists(link) and os.readlink(link) == str(path):
            return True
        new = link.with_name(f".{link.name}-{os.getpid()}")
        new.unlink(missing_ok=True)
        new.symlink_to(path)
        new.replace(link)
    except OSError:
        return False
    return True
