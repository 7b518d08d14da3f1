"""``python -m data_prep``: makes data sets for training, run from a checkout; ``--help`` lists the subcommands.

Exit codes: 0 done, 1 refused, failed or unsound (one sentence on stderr), 2 the command line is wrong, 130 interrupted.
"""

import errno
import math
import os
import signal
import sys
from collections.abc import Sequence


def _leave(*_: object) -> None:
    """Answer an interrupt while modules are imported, which would end in a traceback; nothing has begun yet."""
    os.write(2, f"{_INTERRUPTED}\n".encode())
    os._exit(130)


_INTERRUPTED = "interrupted; nothing half-built is left, run the same command again"
_EARLY = __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _EARLY:
    signal.signal(signal.SIGINT, _leave)
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)

import argparse  # noqa: E402

from data_prep.commands import (  # noqa: E402
    check,
    download,
    emoji,
    manifest,
    plan,
    retry,
    run,
    stamps,
    stats,
    verify,
)
from data_prep.errors import DataError, UsageError  # noqa: E402

COMMANDS = (emoji, stamps, run, plan, download, retry, verify, manifest, check, stats)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code. Command-line mistakes end in SystemExit(2), as argparse does."""
    try:
        try:
            return _main(argv)
        finally:  # what was printed before an error or --help's end, too
            if sys.stdout is not None:  # as it is where the shell closed it (`>&-`)
                sys.stdout.flush()
    except KeyboardInterrupt:
        print(_INTERRUPTED, file=sys.stderr)
        return 130
    except BrokenPipeError:  # as `| head` ends: nobody is there to be told
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except BrokenPipeError:  # Python flushes it once more at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 1


def _main(argv: Sequence[str] | None) -> int:
    top = argparse.ArgumentParser(prog="python -m data_prep", description="Makes data sets for training.")
    subparsers = top.add_subparsers(dest="subcommand", required=True)
    for command in COMMANDS:
        parser = subparsers.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.DESCRIPTION,
            epilog=command.EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(parser)
        parser.set_defaults(run=command.run, usage_error=parser.error)
    args = top.parse_args(argv)
    _refuse_nan(args)
    try:
        args.run(args)
    except BrokenPipeError:  # which is an OSError
        raise
    except UsageError as error:
        args.usage_error(str(error))
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = error.filename or getattr(args, "output", None) or args.subcommand
        advice = "free some space" if error.errno == errno.ENOSPC else "correct that"
        print(f"error: {where}: {error.strerror or error}; {advice} and run the same command again", file=sys.stderr)
        return 1
    return 0


def _refuse_nan(args: argparse.Namespace) -> None:
    """NaN is no number to compare with: every limit would let all pass, or nothing."""
    for name, value in vars(args).items():
        if isinstance(value, float) and math.isnan(value):
            args.usage_error(f"--{name.replace('_', '-')} must be a number, found nan")


if __name__ == "__main__":
    if _EARLY:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    download.interrupt_on_term()
    code = main()
    for ending in (signal.SIGINT, signal.SIGTERM):  # there is nothing left to interrupt, and a second one would be told
        signal.signal(ending, signal.SIG_IGN)
    sys.exit(code)
