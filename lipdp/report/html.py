"""The report as one HTML file that needs nothing else: no script, no font, no picture from elsewhere."""

import base64
import html

from lipdp.report import numbers
from lipdp.report.folder import RunFolder
from lipdp.report.plots import plots
from lipdp.report.style import CSS

HELD_OUT_NOTE = (
    "Accuracies are measured on {examples} held-out examples. These are not among the N training examples and "
    "epsilon does not cover them: if they are private too, do not publish these numbers."
)
NO_HELD_OUT_NOTE = "No examples were held out, so no accuracy was measured: see lipdp train --validation-split."
SAMPLES_NOTE = (
    "Samples follow from the released weights: any number of them costs no further privacy. A loss on held-out "
    "examples is not covered by epsilon."
)
NOT_PRIVATE_NOTE = (
    "Columns and curves marked (not private) were computed on the private training data without noise. They are "
    "outside the guarantee: keep them to yourself."
)
SEED_NOTE = (
    "A fixed seed was used, and this report names it. The guarantee holds only towards people who do not know it."
)


def to_html(run: RunFolder) -> str:
    """Returns the report.

    Args:
        run: a run folder's content; all strings in it are escaped.

    Returns:
        A complete HTML document.
    """
    name = html.escape(str(run.run["settings"].get("dataset", "")))
    sections = [
        f"<header><h1>Private training on {name}</h1><p class=lead>{_lead(run)}</p></header>",
        f"<ul class=tiles>{''.join(_tile(*tile) for tile in tiles(run))}</ul>",
        *(f"<p class=note>{html.escape(note)}</p>" for note in notes(run)),
        _section("How it went", f"<div class=plots>{''.join(_figure(*plot) for plot in plots(run))}</div>"),
        *([_section("Samples", _samples(run))] if run.samples else []),
        *([_section("Bounds of the layers", _bounds(run))] if run.results["bounds"] else []),
        _section("Privacy statement", f"<pre class=statement>{html.escape(run.statement)}</pre>"),
        _section("How to repeat it", _repeat(run)),
    ]
    return (
        "<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        f"<title>lipdp: {name}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def tiles(run: RunFolder) -> list[tuple[str, str, str]]:
    """Returns the headline numbers as `(value, name, remark)`."""
    privacy, held_out = run.privacy, run.results["held_out"]
    budget = run.run["settings"].get("epsilon")
    made = [
        (numbers.up(privacy["epsilon"]), "epsilon", f"of a budget of {budget:g}" if budget else "spent"),
        (f"{privacy['delta']:g}", "delta", _relation(privacy)),
    ]
    if not run.samples:
        made.append((numbers.percent(held_out["accuracy"] if held_out else None), "accuracy", "held-out examples"))
    for mark in held_out["certified"] if held_out else ():
        made.append((numbers.percent(mark["accuracy"]), "certified", f"within L2 radius {mark['radius']:g}"))
    return made


def _relation(privacy) -> str:
    relation = privacy.get("neighboring_relation") or privacy.get("neighbouring_relation", "add_or_remove_one")
    change = relation.removesuffix("_one").replace("_", " ")
    most = privacy.get("examples_per_person", 1)
    return f"{change} one example" if most == 1 else f"{change} one person, at most {most} examples"


def notes(run: RunFolder) -> list[str]:
    """Returns what the reader must know about the numbers."""
    held_out = run.results["held_out"]
    made = [HELD_OUT_NOTE.format(examples=held_out["examples"]) if held_out else NO_HELD_OUT_NOTE]
    if run.samples:
        made = [SAMPLES_NOTE]
    if run.privacy.get("training_metrics_outside_the_guarantee"):
        made.append(NOT_PRIVATE_NOTE)
    if run.privacy.get("seed_fixed_by_user"):
        made.append(SEED_NOTE)
    return made


def settings(run: RunFolder) -> list[tuple[str, str]]:
    """Returns the settings that were used, as words."""
    return [(str(k).replace("_", " "), _words(v)) for k, v in run.run["settings"].items() if v is not None]


def _lead(run) -> str:
    text = f"{run.privacy['updates']} noisy updates"
    started, seconds = run.run.get("started"), run.run.get("seconds")
    if started:
        text += f", started {started}"
    if seconds is not None:
        text += f", {seconds:.0f} s"
    return html.escape(text + ".")


def _tile(value, name, remark) -> str:
    value, name, remark = map(html.escape, (value, name, remark))
    return f"<li><strong>{value}</strong><span>{name}</span><small>{remark}</small></li>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>"


def _figure(title, description, svg) -> str:
    # As a picture of its own: the ids inside one SVG cannot meet those of another.
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<figure><figcaption>{html.escape(title)}</figcaption><img alt="{html.escape(description)}" '
        f'src="data:image/svg+xml;base64,{data}"></figure>'
    )


def _samples(run) -> str:
    data = base64.b64encode(run.samples).decode()
    return (
        f'<p>One column for each class.</p><img alt="images drawn from the model" src="data:image/png;base64,{data}">'
    )


def _bounds(run) -> str:
    heads = ("layer", "input bound", "Lipschitz", "gradient bound", "noise")
    cells = [
        (
            f"{html.escape(row['layer'])} <span class=muted>{html.escape(row['type'])}</span>",
            numbers.short(row["input_bound"]),
            numbers.short(row["lipschitz"]),
            "" if row["gradient_bound"] is None else numbers.short(row["gradient_bound"]),
            "" if row["noise_std"] is None else numbers.short(row["noise_std"]),
        )
        for row in run.results["bounds"]
    ]
    body = "".join(
        f"<tr><th scope=row>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>" for row in cells
    )
    return (
        "<p>For one example, in L2 norm: how large its input to a layer can be, how far the layer stretches, how "
        "large the gradient of its parameters can be; and the standard deviation of the noise on the averaged "
        "gradient.</p><div class=scroll><table class=numbers><thead><tr>"
        + "".join(f"<th scope=col>{head}</th>" for head in heads)
        + f"</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _repeat(run) -> str:
    versions = [(str(k), str(v)) for k, v in run.run["versions"].items()]
    return (
        f"<pre>{html.escape(run.run['command'])}</pre><div class=pair>"
        f"<div><h3>Settings</h3>{_pairs(settings(run))}</div><div><h3>Versions</h3>{_pairs(versions)}</div></div>"
    )


def _pairs(pairs) -> str:
    rows = "".join(
        f"<tr><th scope=row>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in pairs
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _words(value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
