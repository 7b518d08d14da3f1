"""The report's HTML: each function makes one part from plain records and escapes every name it is given.

The frame and the style sheet are ``report_template.html``; the page fetches nothing and runs no script.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from evaluate import charts
from evaluate.data.sets import Dataset
from evaluate.runs import Run

TEMPLATE = Path(__file__).with_name("report_template.html")


def fill(parts: Mapping[str, str]) -> str:
    """The whole page. Raises KeyError when a part of the template is not given."""
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def figure(value: float) -> str:
    """A percentage's digits, two decimals where they matter: 0.06, 4.31, 22.6, 100."""
    if value in (0, 100):
        return f"{value:.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def spoken(number: float) -> str:
    """A large number as people say it: 13.6 M, 150,784, 24."""
    return f"{number / 1e6:.3g} M" if number >= 1e6 else f"{number:,.0f}"


def summary(run: Run, others: Sequence[Run]) -> str:
    """One paragraph: what it is, how long it took, how good it is beside chance and beside the other runs."""
    results, train = run.zero_shot["results"], run.train
    vendor, concepts = results["heldout_vendor"], results["heldout_concepts"]
    beside = "".join(
        f" Beside it, {escape(other.model)} with {escape(str(other.zero_shot['kind']))} attention names "
        f"{figure(other.zero_shot['results']['heldout_vendor']['top1'])}&nbsp;% of the held-out vendor’s pictures."
        for other in others
    )
    minutes = train["train_minutes"]
    took = f"{minutes:.3g} minutes" if minutes > 1 else f"{60 * minutes:.0f} seconds"
    return (
        f"A CLIP model of {spoken(run.zero_shot['parameters']['total'])} parameters with "
        f"<strong>{escape(str(run.zero_shot['kind']))}</strong> attention in its vision tower, trained for {took} "
        f"({train['steps']:,} steps, {train['samples_seen']:,} pictures with their names). Shown emoji of a vendor "
        f"whose drawings it has never seen, it picks the right one of {vendor['classes']:,} names for "
        f"<strong>{figure(vendor['top1'])}&nbsp;%</strong>, and has it among its first five for "
        f"<strong>{figure(vendor['top5'])}&nbsp;%</strong>. Guessing at random gives "
        f"{figure(vendor['chance'])}&nbsp;%. For {concepts['classes']:,} concepts of which no picture by anyone was in "
        f"the training set, it names {figure(concepts['top1'])}&nbsp;% (at random: "
        f"{figure(concepts['chance'])}&nbsp;%).{beside}"
    )


def tiles(run: Run, dataset: Dataset) -> str:
    """The top-1 figure of each set, large, with how many times chance it is."""
    cells = []
    for eval_set in dataset.sets:
        row = run.zero_shot["results"][eval_set.name]
        times = row["top1"] / row["chance"]
        cells.append(
            f'<div class="tile"><dt>{escape(eval_set.title)}</dt><dd><div class="big">{figure(row["top1"])}'
            f'<small> % top-1</small></div><div class="under">{times:,.{0 if times >= 10 else 1}f} times chance'
            f"</div></dd></div>"
        )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def bar_scale(runs: Sequence[Run]) -> float:
    """What a full bar stands for: the least of 10, 25, 50, 100 percent that holds every top-5."""
    most = max(row["top5"] for run in runs for row in run.zero_shot["results"].values())
    return next(scale for scale in (10.0, 25.0, 50.0, 100.0) if most <= scale)


def accuracy(runs: Sequence[Run], labels: Sequence[str], dataset: Dataset, said: Sequence[str]) -> str:
    """The table of all runs and chance, a bar in each row; below it the vendors and the notes ``said``."""
    scale = bar_scale(runs)
    bodies = []
    for eval_set in dataset.sets:
        rows = [run.zero_shot["results"][eval_set.name] for run in runs]
        lines = [
            accuracy_line(label, row, scale, f"s{i}", eval_set.title)
            for i, (label, row) in enumerate(zip(labels, rows, strict=True))
        ]
        about = f"{rows[0]['n']:,} pictures, {rows[0]['classes']:,} classes"
        chance, five = rows[0]["chance"], min(100.0, 5 * rows[0]["chance"])
        bodies.append(
            f'<tbody><tr><th scope="rowgroup" colspan="4">{escape(eval_set.title)} <span>{about}</span>'
            f"<p>{escape(eval_set.about)}</p></th></tr>"
            f'{"".join(lines)}<tr class="chance"><td>chance</td><td class="number">{figure(chance)}</td>'
            f'<td class="number">{figure(five)}</td><td class="number">{figure(chance)}</td></tr></tbody>'
        )
    return (
        '<p class="note">Percent right, by class names alone. Under top-1: its 95&nbsp;% interval (Wilson). Per class: '
        f"the mean over classes. Bars: top-1 solid, top-5 pale; a full bar is {scale:.0f}&nbsp;%.</p>"
        '<table class="accuracy"><thead><tr><th scope="col">Run</th><th scope="col" class="number">Top-1</th>'
        '<th scope="col" class="number">Top-5</th><th scope="col" class="number">Per class</th></tr></thead>'
        f"{''.join(bodies)}</table>{vendors(runs[0], dataset)}"
        + "".join(f'<p class="note">{escape(sentence)}</p>' for sentence in said)
    )


def accuracy_line(label: str, row: Mapping[str, Any], scale: float, css: str, title: str) -> str:
    """One run's row of the accuracy table."""
    low, high = row["interval"]
    described = f"{label}, {title}: top-1 {figure(row['top1'])} percent, top-5 {figure(row['top5'])} percent"
    bar = charts.bar(row["top1"], row["top5"], scale, css=css, description=described)
    return (
        f'<tr><td class="run">{escape(label)}{bar}</td>'
        f'<td class="number"><strong>{figure(row["top1"])}</strong><small>{figure(low)}–{figure(high)}</small></td>'
        f'<td class="number">{figure(row["top5"])}</td><td class="number">{figure(row["mean_per_class"])}</td></tr>'
    )


def vendors(run: Run, dataset: Dataset) -> str:
    """Rows a vendor, folded away, for the sets that have them."""
    folded = []
    for eval_set in dataset.sets:
        parts = run.zero_shot["results"][eval_set.name].get("per_vendor")
        if not parts:
            continue
        rows = "".join(
            f'<tr><td class="run">{escape(vendor)} <small>{row["n"]:,} pictures</small></td>'
            f'<td class="number">{figure(row["top1"])}<small>{figure(row["interval"][0])}–{figure(row["interval"][1])}'
            f'</small></td><td class="number">{figure(row["top5"])}</td>'
            f'<td class="number">{figure(row["mean_per_class"])}</td></tr>'
            for vendor, row in parts.items()
        )
        folded.append(
            f"<details><summary>{escape(eval_set.title)}, vendor by vendor</summary>"
            '<table class="accuracy"><thead><tr><th scope="col">Vendor</th><th scope="col" class="number">Top-1</th>'
            '<th scope="col" class="number">Top-5</th><th scope="col" class="number">Per class</th></tr></thead>'
            f"<tbody>{rows}</tbody></table></details>"
        )
    return "".join(folded)


def loss(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """The loss curves, drawn once for a wide page and once for a phone."""
    curves = [charts.Curve(label, run.steps, run.losses) for run, label in zip(runs, labels, strict=True)]
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
    legend = "".join(f'<li><i class="s{i}"></i>{escape(label)}</li>' for i, label in enumerate(labels))
    lost = "".join(
        f'<p class="note">{escape(label)}: {run.non_finite} logged steps had a loss that is not finite; not drawn.</p>'
        for run, label in zip(runs, labels, strict=True)
        if run.non_finite
    )
    return (
        '<p class="note">Thin: every logged step. Bold: a centred moving average.</p>'
        f'<ul class="legend">{legend}</ul>{"".join(drawn)}{lost}'
    )


def facts(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """What was run, a column a run."""
    columns = [run_facts(run) for run in runs]
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in labels)
    rows = ""
    for name in columns[0]:
        cells = "".join(f"<td>{escape(column[name])}</td>" for column in columns)
        rows += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    table = f'<table class="facts"><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def run_facts(run: Run) -> dict[str, str]:
    """The facts of one run as text; what its files do not say is a dash."""
    zero_shot, train, settings = run.zero_shot, run.train, run.settings
    size = zero_shot["image_size"]
    batch, world = settings.get("batch_size"), train.get("world_size", 1)
    joint = "–" if batch is None else f"{batch:,}" + (f" × {world} processes" if world > 1 else "")
    return {
        "Attention, vision tower": str(zero_shot["kind"]),
        "Attention, text tower": str(zero_shot.get("text_kind", "–")),
        "Parameters, vision tower": f"{zero_shot['parameters']['vision']:,}",
        "Parameters, text tower": f"{zero_shot['parameters']['text']:,}",
        "Image size": f"{size} × {size} px" if isinstance(size, int) else " × ".join(map(str, size)) + " px",
        "Training time": f"{train['train_minutes']:.3g} min",
        "Training speed": f"{train['images_per_s']:,.0f} images/s",
        "Training precision": str(train.get("precision", "–")),
        "Steps": f"{train['steps']:,}",
        "Batch size": joint,
        "Pictures seen": f"{train['samples_seen']:,}",
        "Final loss": f"{train['final_loss']:.3f}" if isinstance(train.get("final_loss"), int | float) else "–",
        "Evaluation speed": f"{zero_shot['images_per_s']:,.0f} images/s" if zero_shot.get("images_per_s") else "–",
    }


def commands(lines: Sequence[tuple[str, str]]) -> str:
    """Each command with a word on what it did, in the order they were run."""
    return "".join(
        f'<p class="command">{escape(what)}</p><pre><code>{escape(line)}</code></pre>' for what, line in lines
    )


def footer(run: Run, credits: Sequence[str]) -> str:
    """What pins the figures: versions and hashes; and whose pictures are shown."""
    versions = ", ".join(f"{name} {version}" for name, version in run.zero_shot.get("versions", {}).items())
    data = ", ".join(f"{name} {digest[:16]}…" for name, digest in run.zero_shot["manifests"].items())
    return (
        f"<p>Pictures: {escape('; '.join(credits))}.</p>"
        f"<p>Checkpoint sha256 {escape(run.zero_shot['checkpoint']['sha256'][:16])}…; manifests: {escape(data)}.</p>"
        f"<p>Evaluated with {escape(versions)}.</p>"
    )
