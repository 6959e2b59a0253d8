"""What libcuda alone can prove: no torch, no CuPy, no compiler. One JSON object on stdout.

    python benchmarks/gpu/gpu_job.py ask [--limit-s 120]     questions to the driver; exit code 1 if an answer is bad
    python benchmarks/gpu/gpu_job.py job TRUTH               a job whose kernels stamp themselves, to be traced
    python benchmarks/gpu/gpu_job.py ranks N FOLDER          N ranks on libnccl alone on one device, to be traced
    python benchmarks/gpu/gpu_job.py rank R N FOLDER         one of them
    python benchmarks/gpu/gpu_job.py check RUN TRUTH         what was recorded against what the job says; TRUTH is the
                                                             job's file or the ranks' folder; exit code 1 if they differ

    stashtrace run --lookup-hook --out RUN -- python benchmarks/gpu/gpu_job.py job TRUTH

ctypes finds the driver's functions by dlsym, so the driver's part of these jobs is seen with --lookup-hook alone.
libnccl is that of STASHTRACE_NCCL_LIBRARY, else that of NCCL's wheel.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run one of the four; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    ask = commands.add_parser("ask", help="ask the driver")
    ask.add_argument("--limit-s", type=float, default=120, help="seconds for all questions (120)")
    commands.add_parser("answer").add_argument("question")
    job = commands.add_parser("job", help="the job on one device")
    job.add_argument("truth", type=Path)
    rank = commands.add_parser("rank", help="one rank of the job of collectives")
    rank.add_argument("rank", type=int)
    rank.add_argument("ranks", type=int)
    rank.add_argument("folder", type=Path)
    ranks = commands.add_parser("ranks", help="all ranks of that job")
    ranks.add_argument("ranks", type=int)
    ranks.add_argument("folder", type=Path)
    for command, steps_count in ((job, 40), (rank, 20), (ranks, 20)):
        command.add_argument("--steps", type=int, default=steps_count)
    for command in (rank, ranks):
        command.add_argument("--non-blocking", action="store_true", help="communicators whose calls return at once")
    check = commands.add_parser("check", help="compare a run with what its job says")
    check.add_argument("run", type=Path)
    check.add_argument("truth", type=Path)
    options = parser.parse_args()
    if options.command == "ask":
        import gpu_questions

        answers = gpu_questions.ask_all(Path(__file__), options.limit_s)
        wrong = list(gpu_questions.problems(answers))
        print(json.dumps({"problems": wrong, "answers": answers}, indent=1))
        return 1 if wrong else 0
    if options.command == "answer":
        import gpu_questions

        return gpu_questions.answer(options.question)
    if options.command == "check":
        sys.path.insert(0, str(ROOT))
        import gpu_checks

        found = gpu_checks.check(options.run, options.truth)
        print(json.dumps(found, indent=1))
        return 1 if found["problems"] else 0
    import gpu_jobs

    if options.command == "job":
        gpu_jobs.device_job(options.truth, options.steps)
    elif options.command == "ranks":
        return gpu_jobs.nccl_ranks(
            Path(__file__), options.ranks, options.folder, options.steps, not options.non_blocking
        )
    else:
        gpu_jobs.nccl_rank(options.rank, options.ranks, options.folder, options.steps, not options.non_blocking)
    return 0


if __name__ == "__main__":
    sys.exit(main())
