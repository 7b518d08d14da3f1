"""``python -m evaluate``: what a checkpoint can do, in figures; ``--help`` lists the subcommands.

Exit codes: 0 done, 1 refused or failed (one sentence on stderr), 2 the command line is wrong.
"""

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence

from evaluate.commands import attention, compare, dispersion, probe, report, retrieval, scaling, speed, zero_shot
from evaluate.commands.options import add_model_configs
from evaluate.errors import RefusedError

COMMANDS = {
    command.NAME: command
    for command in (zero_shot, compare, retrieval, probe, report, scaling, speed, dispersion, attention)
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m evaluate", description="Evaluate a CLIP checkpoint.")
    subparsers = top.add_subparsers(dest="subcommand", required=True)
    for name, command in COMMANDS.items():
        command.add_arguments(
            subparsers.add_parser(
                name,
                help=command.HELP,
                description=command.DESCRIPTION,
                epilog=command.EXAMPLE,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code. Command-line mistakes end in SystemExit(2), as argparse does."""
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # file names may hold bytes that are no UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        add_model_configs(args.model_configs)
        COMMANDS[args.subcommand].run(args, argv)
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (RefusedError, OSError) as error:
        from evaluate.ranks import is_first

        if isinstance(error, OSError) or is_first():  # what one process of a group refuses, all do
            print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was written before is whole", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
