"""``python -m data_prep retry``: asks again for what did not come for a reason that may pass."""

import argparse
import sys

from data_prep.commands import download as command
from data_prep.laion.download import download
from data_prep.laion.retry import plan_retry
from data_prep.words import many

NAME = "retry"
HELP = "download again what failed for a reason that may pass"
DESCRIPTION = """\
Makes new parts of the rows that failed by a time-out, a lost connection, DNS, or a busy or failing server (408, 425,
429, 5xx), and downloads them. What was opted out, is gone or is no picture is never asked for again. A retry that was
stopped is finished first, so that each call makes at most one more.
"""
EXAMPLE = """\
examples:
  python -m data_prep retry --output laion        # a day or two after the download; once more, if it pays

exit code: as for download
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    command.add_place_arguments(parser)
    command.add_download_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """The retry subcommand."""
    settings = command.settings_of(args)
    command.refuse_other_metadata(args)
    command.interrupt_on_term()
    result = download(args.output, settings)
    if rows := plan_retry(args.output):
        print(f"retry: {many(rows, 'row')}", file=sys.stderr, flush=True)
        result = download(args.output, settings)
    command.show(args, {**result, "retried": rows})
