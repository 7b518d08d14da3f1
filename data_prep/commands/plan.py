"""``python -m data_prep plan``: from LAION-like metadata to a list of what to download."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.laion.columns import MAPS, parse_columns
from data_prep.laion.plan import Shape, dry_run, plan
from data_prep.laion.rules import Settings
from data_prep.words import many

NAME = "plan"
HELP = "choose from LAION-like metadata what to download"
DESCRIPTION = """\
Reads metadata (parquet, CSV with a header line, TSV without quotes, JSON lines) and writes DIR/plan: the rows that pass
every rule, in numbered parts, and plan.json with the counts of what each rule took out. Run again, it finds the plan
made, or refuses where metadata or rules are others.

The metadata of LAION-400M: its first host is gone. Its safety-revised re-release is laion/relaion400m on the Hugging
Face hub (log in and accept the conditions there): links to known abusive material were taken out, so use that one and
no old copy.
"""
EXAMPLE = """\
examples:
  python -m data_prep plan --metadata relaion400m/ --output laion
  python -m data_prep plan --metadata relaion400m/ --output laion --dry-run       # counts and examples, nothing written
  python -m data_prep plan --metadata cc12m.tsv --output cc12m --columns url=image_url,caption=text

Memory is 8 bytes a row that passes and about 0.3 GB; a rule whose column is missing is off, and the counts say so.

exit code: 0 the plan is there, 1 it could not be made (one sentence says why), 2 wrong usage, 130 interrupted
"""
_OPT_OUT = (
    "what to leave out, one a line: example.org or https://example.org for all of that host and those below it, "
    "https://example.org/sub/ for a folder, https://example.org/a.jpg for a picture; each by http and https"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    add_plan_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="show counts and ten examples a rule, write nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """What decides a plan, for every subcommand that may have to make one."""
    rules, shape = Settings(), Shape()
    parser.add_argument(
        "--metadata", type=Path, nargs="+", required=True, metavar="PATH", help="folders or files of the metadata"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of the data set to be")
    parser.add_argument(
        "--columns",
        default="auto",
        metavar="MAP",
        help=f"which columns are what: {', '.join(MAPS)}, or url=NAME,caption=NAME,… for these alone (default: auto, "
        "by their names)",
    )

    def number(name: str, kind: type, default: Any, text: str, metavar: str = "N") -> None:
        shown = "none" if default is None else "%(default)s"
        parser.add_argument(name, type=kind, default=default, metavar=metavar, help=f"{text} (default: {shown})")

    number("--min-similarity", float, rules.min_similarity, "least similarity of picture and caption")
    number("--min-side", int, rules.min_side, "least side of a picture", "PX")
    number("--max-aspect", float, rules.max_aspect, "most that one side may be of the other")
    number("--language", str, None, "only captions in this language, as en; needs py3langid", "CODE")
    number("--opt-out", Path, None, _OPT_OUT, "FILE")
    number("--sample", float, rules.sample, "share of the URLs to take, by their hash", "SHARE")
    number("--seed", int, rules.seed, "chooses the sample")
    number("--max-rows", int, None, "stop at so many rows")
    parser.add_argument(
        "--allow-private", action="store_true", help="take hosts inside this machine or network (tests, intranets)"
    )
    number("--shard-size", int, shape.shard_size, "rows of a shard")
    number("--shards-per-part", int, shape.shards_per_part, "shards that one process downloads")


def plan_settings(args: argparse.Namespace) -> tuple[Any, Settings, Shape]:
    """The options of `add_plan_arguments` as `plan` takes them: columns, rules, shape."""
    rules = Settings(
        min_similarity=args.min_similarity,
        min_side=args.min_side,
        max_aspect=args.max_aspect,
        language=args.language,
        opt_out=args.opt_out,
        sample=args.sample,
        seed=args.seed,
        max_rows=args.max_rows,
        allow_private=args.allow_private,
    )
    return parse_columns(args.columns), rules, Shape(args.shard_size, args.shards_per_part)


def run(args: argparse.Namespace) -> None:
    """The plan subcommand."""
    columns, rules, shape = plan_settings(args)
    if args.dry_run:
        found = dry_run(args.metadata, columns, rules)
        print(json.dumps(found) if args.json else "\n".join([*_counts(found), *_examples(found)]))
        return
    found = plan(args.metadata, args.output, columns, rules, shape)
    headline = f"{args.output}: {'planned' if found['planned'] else 'already planned so'}"
    shape_line = f"  {many(len(found['parts']), 'part')}, shards of {found['shard_size']:,}"
    print(json.dumps(found) if args.json else "\n".join([headline, shape_line, *_counts(found)]))


def _counts(found: Mapping[str, Any]) -> list[str]:
    """The counts for a person."""
    counts = dict(found["counts"])
    read = counts.pop("rows_read")
    lines = [f"  {many(read, 'row')} read, {found['rows']:,} taken ({found['rows'] / max(read, 1):.1%})"]
    lines += [f"  {count:>12}  {name}" for name, count in counts.items() if count]
    return lines + [f"  {'off':>12}  {name}: {why}" for name, why in found["off"].items()]


def _examples(found: Mapping[str, Any]) -> list[str]:
    """What the rules take out, for a person."""
    lines = []
    for name, examples in found["examples"].items():
        if examples:
            lines += [f"  {name}: {found['says'][name]}", *(f"    {example}" for example in examples)]
    return lines
