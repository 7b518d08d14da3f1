"""``python -m data_prep run``: from metadata to verified shards, a manifest and a page, all steps in order."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.commands import download as fetching
from data_prep.commands.plan import add_plan_arguments, plan_settings
from data_prep.commands.verify import add_shares, findings_of, options_of
from data_prep.errors import DataError
from data_prep.laion.download import Settings, download
from data_prep.laion.layout import read_collected
from data_prep.laion.plan import plan
from data_prep.laion.reasons import transient
from data_prep.laion.tally import shares
from data_prep.pool import default_workers
from data_prep.words import many

if TYPE_CHECKING:
    from data_prep.laion.verify import Options, Result

NAME = "run"
HELP = "plan, download, verify, write the manifest and the page: everything in order"
DESCRIPTION = """\
Plans, downloads, verifies, writes DIR/shards/manifest.jsonl, which training reads, and DIR/stats.html, and says what
was lost and why. Unsound shards are put aside with the reason (DIR/quarantine) and downloaded once more. Flaws of
pictures (one colour, there before …) are as the web has them: they are only counted, unless --max-flawed is given (see
`verify`). It may be stopped at any time; run again, it goes on. After a `retry` it takes in what that brought.
"""
EXAMPLE = """\
examples:
  python -m data_prep run --metadata relaion400m/ --output laion
  python -m data_prep run --metadata relaion400m/ --output small --max-rows 100000 --img2dataset-python venv/bin/python
  python -m training --train-data laion/shards ...

exit code: 0 all is there and sound, 1 stopped, refused, or a shard is still unsound, 2 wrong usage, 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    add_plan_arguments(parser)
    fetching.add_download_arguments(parser)
    add_shares(parser)
    parser.add_argument(
        "--workers",
        type=int,
        default=default_workers(),
        help="processes that verify (default: one a core, %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the content of DIR/stats.json")
    parser.set_defaults(again=False, max_flawed=1.0)  # to download the shard again would bring its flaws again


def run(args: argparse.Namespace) -> None:
    """The run subcommand."""
    from data_prep.laion.stats import refuse_foreign_pages, stats

    columns, rules, shape = plan_settings(args)
    settings, options = fetching.settings_of(args), options_of(args, None)
    fetching.interrupt_on_term()
    refuse_foreign_pages(args.output)  # and not after days of downloading, as a damaged manifest:
    read_collected(args.output)
    plan(args.metadata, args.output, columns, rules, shape)
    result = _bring(args.output, settings, options)
    if result.unsound:
        print(f"put aside and downloaded again: {many(len(result.unsound), 'shard')}", file=sys.stderr, flush=True)
        result = _bring(args.output, settings, options)
    record = stats(args.output, seed=0, workers=options.workers)
    print(json.dumps(record) if args.json else summary(record, findings_of(result), args.output))
    if result.unsound:
        raise DataError(
            f"{many(len(result.unsound), 'shard')} unsound again; {args.output / 'quarantine'} says why: run the same "
            "command again, or allow more with --max-broken and --max-flawed"
        )


def _bring(output: Path, settings: Settings, options: "Options") -> "Result":
    """Download what is missing and verify it; what is unsound is put aside."""
    from data_prep.laion.collect import collect

    download(output, settings)
    return collect(output, options)


def _as_known(record: dict[str, Any]) -> str:
    """A reservation where tables of the download are gone."""
    lost = record["rows_without_table"]
    return f", as far as tables tell (gone are those of {many(lost, 'row')})" if lost else ""


def summary(record: dict[str, Any], findings: Sequence[str], output: Path) -> str:
    """What was lost and why, of all rows of the metadata, and what was found in the shards."""
    counts = dict(record["plan"]["counts"])
    read, taken = counts.pop("rows_read"), record["plan"]["rows"]
    rules = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    passing = sum(count for reason, count in record["reasons"].items() if transient(reason))
    lines = [
        f"{many(read, 'row')} of metadata, {taken:,} taken" + (f"; by rule {rules}" if rules else ""),
        f"{many(record['rows'], 'row')} downloaded{_as_known(record)}, {shares(record['reasons'], most=20)}",
        f"{many(record['samples'], 'sample')} in {many(record['shards'], 'verified shard')}: {output / 'shards'}",
        *findings,
        *record["not_known"],
    ]
    if passing:
        lines.append(f"{many(passing, 'row')} may come another day: python -m data_prep retry, then run again")
    return "\n".join([*lines, f"look at {output / 'stats.html'}"])
