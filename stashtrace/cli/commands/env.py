"""``stashtrace env``: print the variables that ``stashtrace run`` would set, for a job that starts without it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stashtrace.cli.parsing import Parser, add_value
from stashtrace.errors import UsageError
from stashtrace.record.directory import file_rights, prepare_directory
from stashtrace.record.environment import copy_guest_part, traced_environment
from stashtrace.record.launchers import job_of
from stashtrace.record.options import RecordOptions
from stashtrace.record.remote import is_url
from stashtrace.record.run import open_run_directory, run_facts

#: Formats of the variables of this machine; the others are for a job that starts later or elsewhere.
_HERE = ("sh", "slurm")
FORMATS = (*_HERE, "dotenv", "json", "kubernetes", "openmpi", "mpich")


def parser() -> Parser:
    """Return the parser of ``stashtrace env``."""
    parser = Parser(
        "env",
        "Print the variables that make a job record itself, for a container or a\n"
        "launcher whose command must not change. Formats sh and slurm also make the run\n"
        "directory.\n"
        "When the job has ended, `stashtrace merge DIR` prints its summary.",
        'example: eval "$(stashtrace env --out /shared/run-7 --run-id "$JOB_NAME")"',
    )
    parser.add_out("DIR", "run directory (default: ./stash-MMDD-HHMMSS, ./stash-JOB)")
    job = "name of the job, the same on all hosts; not needed under SLURM and MPI"
    add_value(parser, "--run-id", "JOB", job)
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        choices=FORMATS,
        default="sh",
        help="sh: export lines (default); slurm: the same as a TaskProlog prints them; dotenv: a file for"
        " `docker run --env-file`; json;"
        " kubernetes: a list of env entries; openmpi: -x options; mpich: -genv options",
    )
    into = "copy the recorder into DIR first and print variables of that copy: for images without stashtrace"
    add_value(parser, "--into", "DIR", into)
    RecordOptions.add_arguments(parser, launched=False)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the variables."""
    arguments = parser().read(argv)
    if arguments.out is not None and is_url(arguments.out):
        raise UsageError(
            f"{arguments.out} is a URL, and processes can only write to a directory",
            hint="give a directory, copy it after the job, and `stashtrace merge` the copy",
        )
    job = job_of((), os.environ, arguments.run_id)
    ours = arguments.format in _HERE
    if not ours and arguments.out is None:
        raise UsageError(f"--format {arguments.format} needs --out", hint="for example --out /shared/run-7")
    options = RecordOptions.from_arguments(arguments)
    if ours:
        traced_environment({}, options, run_dir=".", run_id=job.run_id)  # raises before anything is made
    package = None if arguments.into is None else copy_guest_part(Path(arguments.into).absolute())
    if ours:
        with file_rights(arguments.share):
            directory = prepare_directory(arguments.out, job=job)
    else:
        directory = arguments.out
    # The formats for elsewhere must not contain variables of this machine.
    base = os.environ if ours else {}
    environment = traced_environment(base, options, run_dir=directory, run_id=job.run_id, package=package)
    changed = {name: value for name, value in environment.items() if base.get(name) != value}
    if ours:
        facts = run_facts((), job, options.recorded_collectors())
        # This process ends at once and cannot say when the job ends.
        facts |= {"launcher_pid": os.getppid(), "launcher": "env"}
        with file_rights(arguments.share):
            open_run_directory(directory, facts, job)
    # A shell or program needs each value unchanged; quoting keeps a shell from running it.
    getattr(sys.stdout, "write_as_is", sys.stdout.write)(_format_variables(changed, arguments.format))
    return 0


def _format_variables(variables: Mapping[str, str], form: str) -> str:
    if form == "json":
        return json.dumps(dict(variables), indent=1) + "\n"
    if form == "dotenv":
        return "".join(f"{name}={value}\n" for name, value in variables.items())
    if form == "kubernetes":
        return "".join(f"- name: {n}\n  value: {json.dumps(v)}\n" for n, v in variables.items())
    if form == "openmpi":
        return " ".join(f"-x {name}={shlex.quote(value)}" for name, value in variables.items()) + "\n"
    if form == "mpich":
        return " ".join(f"-genv {name} {shlex.quote(value)}" for name, value in variables.items()) + "\n"
    quote = str if form == "slurm" else shlex.quote  # Slurm takes the rest of the line as it is
    return "".join(f"export {name}={quote(value)}\n" for name, value in variables.items())
