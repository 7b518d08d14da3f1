"""``python -m evaluate speed``: the kernels' and the towers' speed, memory and errors beside softmax."""

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluate.commands.options import model_configs_argument, own_device, positive
from evaluate.errors import RefusedError

NAME = "speed"
HELP = "time, memory and errors of the kernels and of whole towers beside softmax"
DESCRIPTION = (
    "Measures each kind beside PyTorch's scaled dot-product attention in interleaved rounds: forward, forward and "
    "backward, peak memory in units of N·D·H numbers, errors against float64; with --model whole towers over image "
    "sizes too. Writes FILE.json and a plot beside it, FILE.svg, and prints the table. Takes some ten minutes, with "
    "--quick under two."
)
EXAMPLE = """examples:
  python -m evaluate speed --quick --output runs/speed.json
  python -m evaluate speed --kinds eq7 sema --n 197 4097 65537 --dtype float32 bfloat16 --output runs/speed.json
  python -m evaluate speed --model ViT-B-16-eq7mean --image-size 224 448 896 --n 197 --output runs/towers.json
"""
LENGTHS, QUICK = (197, 577, 785, 1025, 4097, 16_385), (197, 577, 1025)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument("--output", required=True, type=Path, metavar="FILE.json", help="where the result goes")
    parser.add_argument("--quick", action="store_true", help="three lengths, float32, few rounds: under two minutes")
    parser.add_argument("--kinds", nargs="+", metavar="KIND", help="eq7, eq4, inline, sema (default: all)")
    parser.add_argument(
        "--n", type=positive, nargs="+", metavar="N", help=f"tokens (default {' '.join(map(str, LENGTHS))})"
    )
    parser.add_argument("--dtype", nargs="+", metavar="DTYPE", help="float32, bfloat16, float16 (default float32)")
    parser.add_argument("--heads", type=positive, default=12, help="heads of 64 (default 12; half of it from 16,385)")
    parser.add_argument(
        "--longest-softmax", type=positive, default=16_385, metavar="N", help="longer is extrapolated as N² (16,385)"
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="compare with the same kind in plain PyTorch under torch.compile too, up to 16,385 tokens (it takes 8 and "
        "more units of memory); compiles for seconds for each row, on a CPU with a C++ compiler",
    )
    parser.add_argument("--threads", type=positive, default=1, help="of a CPU (default 1)")
    parser.add_argument("--model", nargs="+", default=[], metavar="NAME", help="measure their vision towers too")
    parser.add_argument(
        "--image-size", type=positive, nargs="+", default=[224, 448], metavar="PX", help="of --model (default 224 448)"
    )
    parser.add_argument("--batch-size", type=positive, default=1, help="pictures of --model's step (default 1)")
    model_configs_argument(parser)
    parser.add_argument("--device", help="cpu or cuda[:N] (default: cuda if there is one)")


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The speed subcommand: all refusals, then the rounds, then the JSON and the plot, then the tables."""
    import torch

    from data_prep.atomic import write_text
    from data_prep.progress import progress
    from evaluate.result import FORMAT, check_writable, command_line, versions
    from evaluate.speed import operators, plot, table, towers

    plotted = args.output.with_suffix(".svg")
    check_writable(args.output)
    check_writable(plotted, "the plot beside --output,", keep=(args.output,))
    device = own_device(args.device)
    kinds = _chosen("--kinds", args.kinds, operators.KINDS, operators.KINDS)
    dtypes = _chosen("--dtype", args.dtype, operators.DTYPES, ("float32",))
    lengths = sorted(set(args.n or (QUICK if args.quick else LENGTHS)))
    if args.longest_softmax < lengths[0]:
        raise RefusedError(
            f"--longest-softmax {args.longest_softmax}: softmax would be measured at none of the lengths. "
            f"Give at least the shortest, {lengths[0]}."
        )
    for n in lengths:
        for kind in kinds:
            operators.attend(kind, n)
    for name in args.model:
        for size in args.image_size:
            towers.vision_config(name, size)
    if args.compiled:
        if lengths[0] > operators.LONGEST_COMPILED:
            raise RefusedError(
                f"--compiled: the compiled form is measured up to {operators.LONGEST_COMPILED} tokens, and --n begins "
                f"at {lengths[0]}. Give a shorter length too, or leave --compiled out."
            )
        operators.check_compiler(device)
    torch.set_num_threads(args.threads)
    rounds = len(lengths) * len(dtypes) * 2
    budget = 2.0 if args.quick else 10.0
    with progress(rounds, "kernels", unit="setting") as advance:
        rows = list(
            table.measure(
                kinds,
                lengths,
                dtypes,
                device,
                heads=args.heads,
                longest=args.longest_softmax,
                with_compiled=args.compiled,
                budget=budget,
                advance=advance,
            )
        )
    whole: list[dict[str, Any]] = []
    if args.model:
        with progress(len(args.model) * len(args.image_size), "towers", unit="size") as advance:
            whole = list(
                towers.measure_towers(
                    args.model, args.image_size, device, batch=args.batch_size, budget=budget, advance=advance
                )
            )
    result = {
        "format": FORMAT,
        "device": operators.device_name(device),
        "threads": args.threads if device == "cpu" else None,
        "head_dim": operators.HEAD_DIM,
        "rows": rows,
        "summary": table.summarise(rows),
        "towers": whole,
        "versions": versions(),
        "command": command_line(argv),
    }
    write_text(plotted, plot.draw(rows))
    write_text(args.output, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(shown(result))
    for path in (args.output, plotted):
        print(f"written: {path}")


def _chosen(option: str, given: Sequence[str] | None, known: Collection[str], default: Sequence[str]) -> list[str]:
    """What was asked for, each once. Raises RefusedError for what is not known."""
    for name in given or ():
        if name not in known:
            raise RefusedError(f"{option} {name!r} is not known. Known: {', '.join(known)}.")
    return list(dict.fromkeys(given or default))


def shown(result: Mapping[str, Any]) -> str:
    """The tables for a terminal."""
    head = f"{'kind':<8}{'N':>9}{'dtype':>10} {'pass':<17}{'ratio':>9}{'range':>15}{'ms':>10}{'units':>7}{'error':>9}"
    beside_compiled = any(row["ratio_to_compiled"] is not None for row in result["rows"])
    lines = [f"{head}{'softmax':>9}" + beside_compiled * f"{'compiled':>10}"]
    lines.append("-" * len(lines[0]))
    for row in result["rows"]:
        between = "" if row["ratio_range"] is None else "{:.2f}-{:.2f}".format(*row["ratio_range"])
        mark = "*" if (row["sdpa"] or "").startswith("extrapolated") else ""
        ratio = "" if row["ratio_to_sdpa"] is None else f"{row['ratio_to_sdpa']:.2f}{mark}"
        compiled = "" if row["ratio_to_compiled"] is None else f"{row['ratio_to_compiled']:>10.2f}"
        own, theirs = ("" if row[error] is None else f"{row[error]:.1e}" for error in ("error", "sdpa_error"))
        lines.append(
            f"{row['kind']:<8}{row['n']:>9,}{row['dtype']:>10} {row['pass']:<17}{ratio:>9}{between:>15}"
            f"{row['milliseconds']:>10.2f}{row['memory_units']:>7.2f}{own:>9}{theirs:>9}{compiled}"
        )
    backends = ", ".join(dict.fromkeys(row["sdpa_backend"] for row in result["rows"]))
    threads = f", {result['threads']} thread" + "s" * (result["threads"] != 1) if result["threads"] else ""
    lines.append(
        f"{result['device']}{threads}; ratio: time of PyTorch's SDPA ({backends}) over the kind's; median, range"
    )
    if beside_compiled:
        lines.append("compiled: time of the same kind in plain PyTorch under torch.compile over the kind's")
    lines.append(
        "units: peak memory beyond the inputs in N·D·H numbers; errors: rms beside float64, of the worst gradient"
    )
    if any((row["sdpa"] or "").startswith("extrapolated") for row in result["rows"]):
        lines.append("* softmax was not measured at this length but extrapolated as N² from the longest one measured")
    for one in result["summary"]:
        exponent = "" if one["exponent"] is None else f", time grows as N^{one['exponent']:.2f}"
        faster = "never faster here" if one["faster_from"] is None else f"faster from N = {one['faster_from']:.0f}"
        lines.append(f"{one['kind']} {one['dtype']} {one['pass']}: {faster}{exponent}")
    for row in result["towers"]:
        gains = row["share_of_gain"] is not None and row["share_of_gain"] > 0
        share = f", {100 * row['share_of_gain']:.0f} % of what there is to gain" if gains else ""
        lines.append(
            f"{row['model']} at {row['image_size']} px: {row['ratio_to_softmax']:.2f} times softmax's speed "
            f"({row['ratio_range'][0]:.2f}-{row['ratio_range'][1]:.2f}), without attention {row['ceiling']:.2f}{share}"
        )
    return "\n".join(lines)
