"""The line of the user's code that a stack is in, and the call of a library in which it is there.

<module> (train.py)  main (train.py)  Tensor.backward (torch)  hook (train.py)  json loads  a wrapper of ours
                                                               ^ the place      ^ its leaf
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Bools, Int64, int64
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace, cached_on_trace

#: Whose code a file is.
OURS, LIBRARY, USERS = range(3)
#: A clone of this project may have any name, and a job may lie in a folder of ours.
_OUR_PROBES = re.compile(r"((?:^|.*/)stashtrace/)probes/")
_OUR_FILES = re.compile(r"(?:^|/)(?:site|dist)-packages/stashtrace/|(?:^|/)stashtrace/__init__\.py$")
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/([^/]+)")
_STANDARD = re.compile(r".*/lib(?:64)?/python3(?:\.\d+t?)?/([^/]+)")
#: What pip makes of an entry point: it only calls the program.
_ENTRY_POINT = re.compile(r".*/bin/([^/.]+)$")
_LIBRARIES = (_PACKAGES, _STANDARD, _ENTRY_POINT)
#: Files that each torch has: the folder that holds it may be any (`pip --target`, PYTHONPATH, a build from source).
_TORCH = re.compile(
    r"(.*/)torch/(?:__init__|_ops|_tensor|(?:nn/modules|autograd|optim|utils/data|distributed)/\w+)\.py$"
)
_GENERATED = re.compile(r"<(?:frozen )?([^>]+)>")
#: Files without a path that hold code of the user: ``python -c``, standard input, cells.
_TYPED = re.compile(r"<(?:string|stdin|console|ipython-input.*|command-.*)>$")
#: The main loop of a worker of torch's DataLoader. What called it is the main process as it was when it forked.
_WORKER_LOOP, _WORKER_FILE = "_worker_loop", "torch/utils/data/_utils/worker.py"

#: A function is the training loop if this part of the samples of its threads are in it.
_IN_LOOP_RATIO = 0.9
#: Deeper calls of the user's functions are not followed.
_MOST_CALLS = 64

#: What Python names expressions with a separate frame, behind the function that they stand in.
_EXPRESSION = re.compile(r"(?:\.<locals>)?\.<(?:listcomp|setcomp|dictcomp|genexpr)>.*$")


@dataclass(frozen=True, slots=True)
class Places:
    """Distinct places in code, by number, and the place of each stack."""

    function_code: Int64
    path_code: Int64
    line: Int64
    #: Text of the innermost call of a library below the line; empty if there is none.
    leaf_code: Int64
    #: Number of the line of each place, whatever its leaf.
    line_number: Int64
    #: The function that the training loop calls, within which it is, and its file; -1 for the loop itself.
    entry_code: Int64
    entry_path_code: Int64
    #: In the user's code; else it is a call of a library that none of the user's functions made.
    is_users: Bools
    _frames: GroupBy
    #: By row of ``frames``; -1 if all frames are ours.
    _of_frame: Int64

    def of(self, process_id: Int64, frame_key: Int64) -> Int64:
        """Return the place of each stack; -1 if it could not be read, or is in our code alone."""
        if not len(self._of_frame):
            return np.full(len(frame_key), -1, dtype=np.int64)
        row = self._frames.row_of(process_id, frame_key)
        return np.where(row >= 0, self._of_frame[row], -1)


def callers_of(trace: Trace) -> tuple[GroupBy, Int64]:
    """Return the frames by process and key, and the row of each one's caller; -1 for none and around worker loops."""
    frames, loops = trace.frames, worker_loops(trace)
    by_key = GroupBy(frames["process_id"], frames["frame_key"])
    caller = by_key.row_of(frames["process_id"], frames["caller_key"])
    return by_key, np.where(loops | np.append(loops, False)[caller], -1, caller)


@cached_on_trace
def places(trace: Trace) -> Places:
    """Find the place of each frame: once for each, however many stacks it is the innermost of."""
    frames = trace.frames
    whose = owners(trace)
    by_key, caller = callers_of(trace)
    leaf = innermost_wanted(whose != OURS, caller)
    place = innermost_wanted(whose == USERS, caller)
    place = np.where(place >= 0, place, leaf)
    below = np.where(leaf != place, leaf, -1)
    names = _functions(trace)
    entry = _called_by_loop(trace, np.where(whose == USERS, place, -1), caller, by_key, names)
    columns = [np.append(column, -1)[place] for column in (names, frames["path_code"], frames["line"])]
    entries = [np.append(column, -1)[entry] for column in (names, frames["path_code"])]
    distinct = GroupBy(*columns, leaf_codes(trace, below), *entries)
    function, path, line, leaf_code, entry_code, entry_path_code = distinct.keys
    number = GroupBy(function, path, line).number
    is_users = distinct.any(np.append(whose == USERS, False)[place])
    of_frame = np.where(place >= 0, distinct.number, -1)
    return Places(function, path, line, leaf_code, number, entry_code, entry_path_code, is_users, by_key, of_frame)


def _called_by_loop(trace: Trace, users: Int64, caller: Int64, by_key: GroupBy, names: Int64) -> Int64:
    """Return the frame of the function that a training loop calls and that each frame is in; -1 for the loop itself.

    The loop is the innermost function that nearly all samples of step threads are in. ``users``: the frame itself where
    it is the user's, else -1.
    """
    none = np.full(len(users), -1, dtype=np.int64)
    samples = trace.stack_samples
    try:
        by_step_threads = np.isin(samples["track_id"], [thread.track_id for thread in step_threads(trace)])
    except MissingDataError:
        return none
    rows = by_key.row_of(samples["process_id"][by_step_threads], samples["frame_key"][by_step_threads])
    inner = np.append(innermost_wanted(users >= 0, caller), -1)
    above = np.where(users >= 0, inner[caller], -1)
    depth, at = np.zeros(len(users), dtype=np.int64), above
    for _ in range(_MOST_CALLS):
        depth += at >= 0
        at = np.append(above, -1)[at]
    sampled = inner[rows]
    sampled = sampled[sampled >= 0]
    level = -1
    while len(sampled):
        outer = _at_depth(sampled, level + 1, depth, above)
        known = outer[outer >= 0]
        if GroupBy(names[known]).sizes.max(initial=0) < _IN_LOOP_RATIO * len(sampled):
            break
        level += 1
    return none if level < 0 else _at_depth(inner[:-1], level + 1, depth, above)


def _at_depth(frames: Int64, wanted: int, depth: Int64, above: Int64) -> Int64:
    """Return the user's frame of some depth that each frame is in; -1 where it is less deep."""
    at = np.where(np.append(depth, -1)[frames] >= wanted, frames, -1)
    for _ in range(_MOST_CALLS):
        deeper = np.append(depth, -1)[at] > wanted
        if not deeper.any():
            break
        at = np.where(deeper, np.append(above, -1)[at], at)
    return int64(at)


def _functions(trace: Trace) -> Int64:
    """Return the function of each frame: a comprehension or generator expression is part of the one it stands in."""
    names = GroupBy(trace.frames["name_code"])

    def whole(code: int) -> int:
        around = _EXPRESSION.sub("", trace.text(code))
        known = trace.strings.find(around) if around else -1
        return known if known >= 0 else code

    return int64(names.map(whole))


def place_of(function: str, path: str, line: int, leaf: str = "") -> str:
    """Return the words for a place in code, and for what it calls in a library; empty for an unknown one.

    >>> place_of("hook", "/jobs/late.py", 14), place_of("<module>", "/jobs/late.py", 26), place_of("f", "<stdin>", -1)
    ('hook (late.py:14)', 'late.py:26', 'f (<stdin>)')
    >>> place_of("train.<locals>.step", "/jobs/late.py", 8)
    'train.step (late.py:8)'
    >>> place_of("hook", "/jobs/late.py", 14, "PIL resize"), place_of("<module>", "/jobs/late.py", 26, "PIL resize")
    ('hook (late.py:14, in PIL resize)', 'late.py:26 (in PIL resize)')
    """
    if not function:
        return ""
    where = path.rpartition("/")[2] + (f":{line}" if line > 0 else "")
    if function == "<module>":
        return f"{where} (in {leaf})" if leaf else where
    return f"{function.replace('.<locals>', '')} ({where}{f', in {leaf}' if leaf else ''})"


def owners(trace: Trace) -> Int64:
    """Return whose code each frame is in."""
    files = GroupBy(trace.frames["path_code"])
    paths = {code: trace.text(code) for code in files.values.tolist()}
    found = (_OUR_PROBES.match(path) for path in paths.values())
    folders = tuple({match[1] for match in found if match})
    known = libraries(trace)
    whose = int64(files.map(lambda code: _owner(paths[code], folders, known)))
    return np.where((whose == LIBRARY) & _wrappers(trace), OURS, whose)


@cached_on_trace
def libraries(trace: Trace) -> tuple[re.Pattern[str], ...]:
    """Return what the files of libraries match; the group is the package.

    Besides the usual folders, the one that holds torch: all of it, unless the job's script is in it, too.
    """
    frames = trace.frames
    paths = [trace.text(code) for code in np.unique(frames["path_code"]).tolist()]
    known = (path for path in paths if not any(one.match(path) for one in _LIBRARIES))
    folders = sorted({match[1] for match in map(_TORCH.match, known) if match})
    outermost = frames["caller_key"] == 0
    starts = GroupBy(frames["name_code"][outermost], frames["path_code"][outermost])
    scripts = [trace.text(path) for name, path in zip(*starts.keys, strict=True) if trace.text(name) == "<module>"]
    packages = (
        "[^/]+/" if not any(script.startswith(folder) for script in scripts) else "torch/" for folder in folders
    )
    found = (re.compile(f"{re.escape(folder)}({package})") for folder, package in zip(folders, packages, strict=True))
    return (*_LIBRARIES, *found)


def _wrappers(trace: Trace) -> Bools:
    """Return which frames may be wrappers of ours, which have file and first line of the function that they call."""
    frames = trace.frames
    names = GroupBy(frames["name_code"])
    inside = names.map(lambda code: ".<locals>." in trace.text(code), bool)
    functions = GroupBy(frames["path_code"], frames["first_line"])
    return np.asarray(inside & (functions.min(names.number) < functions.max(names.number))[functions.number])


def _owner(path: str, our_folders: tuple[str, ...], known: tuple[re.Pattern[str], ...]) -> int:
    if path.startswith(our_folders) or _OUR_FILES.search(path):
        return OURS
    if path.startswith("<"):
        return USERS if _TYPED.match(path) else LIBRARY
    return LIBRARY if any(one.match(path) for one in known) else USERS


def worker_loops(trace: Trace) -> Bools:
    """Return which frames are the main loop of a worker."""
    frames, processes = trace.frames, trace.processes
    workers = processes["process_id"][processes["role_code"] == ProcessRole.WORKER]
    names, files = GroupBy(frames["name_code"]), GroupBy(frames["path_code"])
    is_loop = names.map(lambda code: trace.text(code).rpartition(".")[2] == _WORKER_LOOP, bool)
    in_file = files.map(lambda code: trace.text(code).endswith(_WORKER_FILE), bool)
    return np.asarray(is_loop & in_file & np.isin(frames["process_id"], workers), dtype=np.bool_)


def innermost_wanted(wanted: npt.NDArray[Any], caller: Int64) -> Int64:
    """Return the innermost wanted frame from each frame outwards, itself among them; -1 if there is none."""
    none = len(caller)
    at = np.append(np.where(wanted, np.arange(none), np.where(caller >= 0, caller, none)), none)
    for _ in range(none.bit_length()):  # each time twice as far; frames that call each other in a circle never arrive
        further = at[at]
        if (further == at).all():
            break
        at = further
    return np.where(np.append(wanted, False)[at[:-1]], at[:-1], -1)


def leaf_codes(trace: Trace, row: Int64) -> Int64:
    """Return the text of the call of a library in some rows of ``frames``; of row -1 the empty one."""
    frames = trace.frames
    calls = GroupBy(*(np.append(frames[name], 0)[row] for name in ("path_code", "name_code")))
    known = libraries(trace)
    texts = [_library_call(trace.text(path), trace.text(name), known) for path, name in zip(*calls.keys, strict=True)]
    return trace.strings.codes(texts)[calls.number]


def _library_call(path: str, function: str, known: tuple[re.Pattern[str], ...] = _LIBRARIES) -> str:
    """Return the words for a call of a library.

    >>> _library_call("/venv/lib/python3.11/site-packages/PIL/ImageFile.py", "ImageFile.load")
    'PIL ImageFile.load'
    >>> _library_call("<frozen posixpath>", "realpath"), _library_call("/usr/lib/python3.11/json/decoder.py", "decode")
    ('posixpath realpath', 'json decode')
    """
    found = next((match for one in (*known, _GENERATED) if (match := one.match(path))), None)
    return f"{found[1].removesuffix('/').removesuffix('.py')} {function}" if found else function
