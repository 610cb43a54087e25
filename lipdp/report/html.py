"""The report as one HTML file that needs nothing else: no script, no font, no picture from elsewhere."""

import base64
import html

from lipdp.report.content import bounds_table, facts, lead, notes, settings, terms, tiles
from lipdp.report.folder import RunFolder
from lipdp.report.plots import plots
from lipdp.report.style import CSS, dark


def to_html(run: RunFolder) -> str:
    """Returns the report as one HTML document.

    Args:
        run: a run folder's content; all strings in it are escaped.

    Returns:
        A complete HTML document.
    """
    name = html.escape(str(run.run["settings"].get("dataset", "")))
    sections = [
        f"<header><h1>Private training on {name}</h1><p class=muted>{html.escape(facts(run))}</p>"
        f"<p class=lead>{html.escape(lead(run))}</p></header>",
        f"<ul class=tiles>{''.join(_tile(*tile) for tile in tiles(run))}</ul>",
        f"<dl class=terms>{''.join(_term(*term) for term in terms(run))}</dl>",
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


def _tile(value, name, remark) -> str:
    value, name, remark = map(html.escape, (value, name, remark))
    return f"<li><strong>{value}</strong><span>{name}</span><small>{remark}</small></li>"


def _term(name, meaning) -> str:
    return f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(meaning)}</dd></div>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>"


def _figure(title, description, svg) -> str:
    # As a picture of its own: the ids inside one SVG cannot meet those of another.
    data = base64.b64encode(dark(svg).encode()).decode()
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
    heads, rows = bounds_table(run)
    body = "".join(
        f"<tr><th scope=row>{layer} <span class=muted>{kind}</span></th>"
        f"{''.join(f'<td>{number}</td>' for number in values)}</tr>"
        for layer, kind, *values in (map(html.escape, row) for row in rows)
    )
    return (
        "<p>For one example, in L2 norm: how large its input to a layer can be, how far the layer stretches, how "
        "large the gradient of its parameters can be; and the standard deviation of the noise on the averaged "
        "gradient.</p><div class=scroll><table class=numbers><thead><tr>"
        + "".join(f"<th scope=col>{head}</th>" for head in heads if head != "type")
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
