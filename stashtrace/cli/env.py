"""``stashtrace env``: the variables that ``stashtrace run`` would set, for a job that nothing of ours starts."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from stashtrace.cli.parsing import Parser
from stashtrace.errors import UsageError
from stashtrace.record.directory import file_rights, prepare_directory
from stashtrace.record.environment import traced_environment
from stashtrace.record.job import job_of
from stashtrace.record.options import RecordOptions
from stashtrace.record.remote import is_url
from stashtrace.record.run import open_run_directory, run_facts

#: What is printed for whom; "sh" is for this machine, the others describe one that is started later.
FORMATS = ("sh", "dotenv", "json", "kubernetes", "openmpi", "mpich")


def parser() -> Parser:
    """Return the parser of ``stashtrace env``."""
    parser = Parser(
        "env",
        "Print the variables that make a job record itself, for a container or a\n"
        "launcher whose command shall not change. `sh` also makes the run directory;\n"
        "`stashtrace merge DIR` sums up when the job has ended.",
        'example: eval "$(stashtrace env --out /shared/run-7 --run-id "$JOB_NAME")"',
    )
    parser.add_out("DIR", "run directory (default: ./stash-MMDD-HHMMSS, ./stash-JOB)")
    parser.add_argument(
        "--run-id", metavar="JOB", help="name of the job, the same on all hosts; SLURM and MPI are known without"
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="sh",
        help="sh: export lines (default); dotenv: a file for `docker run --env-file`; json;"
        " kubernetes: a list of env entries; openmpi: -x options; mpich: -genv options",
    )
    RecordOptions.add_arguments(parser, launched=False)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the variables."""
    arguments = parser().read(argv)
    if arguments.out is not None and is_url(arguments.out):
        raise UsageError(
            f"{arguments.out} is a URL, and processes write to directories",
            hint="give a directory that can be written, and `stashtrace merge` what was copied from it",
        )
    job = job_of((), os.environ, arguments.run_id)
    ours = arguments.format == "sh"
    if not ours and arguments.out is None:
        raise UsageError(f"--format {arguments.format} needs the directory", hint="for example --out /shared/run-7")
    options = RecordOptions.from_arguments(arguments)
    if ours:
        traced_environment({}, options, run_dir=".", run_id=job.run_id)  # complains before anything is made
        with file_rights(arguments.share):
            directory = prepare_directory(arguments.out, job=job)
    else:
        directory = arguments.out
    # Of the formats for elsewhere, nothing of this machine's own variables may be a part.
    base = os.environ if ours else {}
    environment = traced_environment(base, options, run_dir=directory, run_id=job.run_id)
    changed = {name: value for name, value in environment.items() if base.get(name) != value}
    if ours:
        facts = run_facts((), job, options.recorded_collectors())
        # What prints the variables is gone at once and can tell nothing of the job's end.
        facts |= {"launcher_pid": os.getppid(), "launcher": "env"}
        with file_rights(arguments.share):
            open_run_directory(directory, facts, job)
    # For a shell or a program, which must have each value as it is; quoting keeps it from being run.
    getattr(sys.stdout, "write_as_is", sys.stdout.write)(_written(changed, arguments.format))
    return 0


def _written(variables: Mapping[str, str], form: str) -> str:
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
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
