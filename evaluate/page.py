"""The report's HTML around the results: each function makes one part from plain records and escapes every text.

The frame and the style sheet are ``report_template.html``; the page fetches nothing and runs no script.
"""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from evaluate import charts
from evaluate.runs import Run
from evaluate.sections.values import figure, note
from evaluate.sections.zero_shot import ZeroShot

TEMPLATE = Path(__file__).with_name("report_template.html")
CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
MOST_TILES = 6
EMOJI_SETS = {"heldout_vendor", "heldout_concepts"}  # the emoji set's results, which the lead speaks of

Named = Sequence[tuple[Run, str, str]]  # a run, its label, its colour's CSS class


def fill(parts: Mapping[str, str]) -> str:
    """The whole page. Raises KeyError when a part of the template is not given."""
    filled = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(parts)
    return CONTROLS.sub("\ufffd", filled)  # names and paths may hold any, and HTML allows none


def sections(bodies: Sequence[tuple[str, str]]) -> str:
    """The page's sections, (heading, HTML) each; those without content are left away."""
    return "\n".join(f"<section>\n<h2>{escape(head)}</h2>\n{body}\n</section>" for head, body in bodies if body)


def spoken(number: float) -> str:
    """A large number as people say it: 13.6 M, 150,784, 24."""
    return f"{number / 1e6:.3g} M" if number >= 1e6 else f"{number:,.0f}"


def is_emoji(result: ZeroShot | None) -> bool:
    """Whether the page has the emoji set's figures to speak of."""
    return result is not None and result.dataset == "emoji" and result.figures.keys() >= EMOJI_SETS


def summary(run: Run, result: ZeroShot, others: Sequence[ZeroShot]) -> str:
    """One paragraph on an emoji run: what it is, how long it took, how good it is beside chance and the others."""
    vendor, concepts = result.figures["heldout_vendor"], result.figures["heldout_concepts"]
    beside = "".join(
        f" Beside it, {escape(other.subject.model)} with {escape(other.kind)} attention names "
        f"{figure(other.figures['heldout_vendor'].top1)}&nbsp;% of the held-out vendor’s pictures."
        for other in others
    )
    took = ""
    if run.train:
        minutes = run.train["train_minutes"]
        took = (
            f", trained for {f'{minutes:.3g} minutes' if minutes > 1 else f'{60 * minutes:.0f} seconds'} "
            f"({run.train['steps']:,} steps, {run.train['samples_seen']:,} pictures with their names)"
        )
    total = result.parameters.get("total")
    size = f" of {spoken(total)} parameters" if total else ""
    return (
        f"A CLIP model{size} with <strong>{escape(result.kind)}</strong> attention in its vision tower{took}. Shown "
        f"emoji of a vendor whose drawings it has never seen, it picks the right one of {vendor.classes:,} names for "
        f"<strong>{figure(vendor.top1)}&nbsp;%</strong>, and has it among its first five for "
        f"<strong>{figure(vendor.top5)}&nbsp;%</strong>. Guessing at random gives {figure(vendor.chance)}&nbsp;%. For "
        f"{concepts.classes:,} concepts of which no picture by anyone was in the training set, it names "
        f"{figure(concepts.top1)}&nbsp;% (at random: {figure(concepts.chance)}&nbsp;%).{beside}"
    )


def overview(counts: Mapping[str, int], models: Sequence[str]) -> str:
    """One paragraph on what the page shows: {"runs": 2, "zero-shot results": 1} of which models."""
    said = ", ".join(f"{n} {what.removesuffix('s') if n == 1 else what}" for what, n in counts.items() if n)
    of = f" of {', '.join(models[:5])}{', …' if len(models) > 5 else ''}" if models else ""
    return escape(f"{said}{of}.")


def tiles(results: Sequence[ZeroShot]) -> str:
    """The top-1 figures of one checkpoint's results, large, with how many times chance each is."""
    cells = []
    for result in results:
        for eval_set in result.sets if len(results) == 1 else result.sets[:1]:
            row = result.figures[eval_set.name]
            times = row.top1 / row.chance
            cells.append(
                f'<div class="tile"><dt>{escape(eval_set.title)}</dt><dd><div class="big">{figure(row.top1)}'
                f'<small> % top-1</small></div><div class="under">{times:,.{0 if times >= 10 else 1}f} times chance'
                f"</div></dd></div>"
            )
    return f'<dl class="tiles">{"".join(cells[:MOST_TILES])}</dl>'


def loss(runs: Named) -> str:
    """The loss curves, drawn once for a wide page and once for a phone."""
    curves = [charts.Curve(label, run.steps, run.losses, css) for run, label, css in runs]
    if not curves:
        return ""
    ends = "; ".join(
        f"{c.name}: from {c.ys[0]:.2f} at step {c.xs[0]:g} to {c.ys[-1]:.2f} at {c.xs[-1]:g}" for c in curves
    )
    drawn = [
        charts.line_chart(
            curves,
            width=width,
            height=height,
            x_label="optimizer step",
            y_label="contrastive loss (nats)",
            description=f"Training loss by step. {ends}.",
            css=css,
        )
        for width, height, css in ((932, 340, "broad"), (358, 280, "narrow"))
    ]
    legend = "".join(f'<li><i class="{css}"></i>{escape(label)}</li>' for _, label, css in runs)
    lost = "".join(
        note(f"{label}: {run.non_finite} logged steps had a loss that is not finite; not drawn.")
        for run, label, _ in runs
        if run.non_finite
    )
    return (
        f"{note('Thin: every logged step. Bold: a centred moving average.')}"
        f'<ul class="legend">{legend}</ul>{"".join(drawn)}{lost}'
    )


def facts(columns: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """What was run, a column each: (label, facts). Rows that nobody has a word on are left away."""
    names = list(dict.fromkeys(name for _, column in columns for name in column))
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label, _ in columns)
    rows = ""
    for name in names:
        cells = "".join(f"<td>{escape(column.get(name, '–'))}</td>" for _, column in columns)
        rows += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    if not rows:
        return ""
    table = f'<table class="facts"><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def result_facts(result: ZeroShot) -> dict[str, str]:
    """What a zero-shot result says of its model."""
    found = {
        "Attention, vision tower": result.kind,
        "Attention, text tower": str(result.content.get("text_kind", "–")),
        **{
            f"Parameters, {tower} tower": f"{result.parameters[tower]:,}"
            for tower in ("vision", "text")
            if tower in result.parameters
        },
        "Checkpoint, sha256": f"{result.subject.sha256[:16]}…",
        "Image size": " × ".join(map(str, result.image_size)) + " px",
    }
    if result.images_per_s:
        found["Evaluation speed"] = f"{result.images_per_s:,.0f} images/s"
    return found


def run_facts(run: Run) -> dict[str, str]:
    """What a run's own files say of it."""
    train, settings = run.train, run.settings
    batch, world = settings.get("batch_size"), train.get("world_size", 1)
    found = {}
    if train:
        found = {
            "Training time": f"{train['train_minutes']:.3g} min",
            "Training speed": f"{train['images_per_s']:,.0f} images/s",
            "Training precision": str(train.get("precision", "–")),
            "Steps": f"{train['steps']:,}",
            "Pictures seen": f"{train['samples_seen']:,}",
        }
    else:
        found = {"Steps": f"{run.steps[-1]:,.0f}, not finished"}
    if isinstance(batch, int):
        found["Batch size"] = f"{batch:,}" + (f" × {world} processes" if world != 1 else "")
    return found | {"Last loss": f"{run.losses[-1]:.3f}"}


def commands(lines: Sequence[tuple[str, str]]) -> str:
    """Each command with a word on what it did, in the order they were run."""
    return "".join(
        f'<p class="command">{escape(what)}</p><pre><code>{escape(line)}</code></pre>' for what, line in lines
    )


def footer(results: Sequence[ZeroShot], credits: Sequence[str]) -> str:
    """What pins the figures: hashes of data and the versions of what measured them; and whose pictures are shown."""
    parts = [f"Pictures: {'; '.join(credits)}."] if credits else []
    data: dict[str, None] = {}
    for result in results:
        manifests = result.content.get("manifests")
        listed = manifests if isinstance(manifests, dict) and manifests else {result.dataset: result.pictures}
        data |= {f"{name} {str(digest)[:16]}…": None for name, digest in listed.items() if digest}
    if data:
        parts.append(f"Data: {', '.join(data)}.")
    versions = [result.content.get("versions") for result in results]
    for found in [v for i, v in enumerate(versions) if isinstance(v, dict) and v not in versions[:i]]:
        parts.append(f"Evaluated with {', '.join(f'{name} {version}' for name, version in found.items())}.")
    return "".join(f"<p>{escape(part)}</p>" for part in parts)
