"""The report as Markdown: the same numbers without the plots."""

from lipdp.report import numbers
from lipdp.report.content import bounds_table, facts, lead, notes, settings, terms, tiles
from lipdp.report.folder import SAMPLES, RunFolder


def to_markdown(run: RunFolder) -> str:
    """Returns the report as Markdown text; its content is that of `to_html`, without the plots."""
    name = _cell(run.run["settings"].get("dataset", ""))
    blocks = [
        f"# Private training on {name}",
        lead(run),
        facts(run),
        _table(("", "", ""), [(f"**{value}**", label, remark) for value, label, remark in tiles(run)]),
        "\n".join(f"- **{name}** {meaning}" for name, meaning in terms(run)),
        "\n".join(f"> {note}\n" for note in notes(run)).rstrip(),
        *([f"## Samples\n\n![images drawn from the model]({SAMPLES})"] if run.samples else []),
        *_curves(run),
        *(["## Bounds of the layers", _table(*bounds_table(run))] if run.results["bounds"] else []),
        "## Privacy statement",
        _code(run.statement),
        "## How to repeat it",
        _code(run.run["command"]),
        _table(("setting", "value"), settings(run)),
        _table(("package", "version"), run.run["versions"].items()),
    ]
    return "\n\n".join(blocks) + "\n"


def _curves(run) -> list[str]:
    """Returns several deltas and points of the trade-off curve, where the run has them."""
    risk = run.privacy.get("risk", {})
    if not risk.get("deltas"):
        return []
    deltas = [(numbers.epsilon(e), f"{delta:g}") for e, delta in numbers.deltas(run.privacy) if delta <= 1e-3]
    rates = [(numbers.percent(x), numbers.percent(y)) for x, y in risk["trade_off"] if x in (0.001, 0.01, 0.1, 0.5)]
    heads = ("epsilon", "delta"), ("false positive rate", "false negative rate, at least")
    return ["## Epsilon by delta", _table(heads[0], deltas), "## What attacks can do", _table(heads[1], rates)]


def _table(heads, rows) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value) -> str:
    text = " ".join(str(value).split())
    for character in "\\`|<>[]":
        text = text.replace(character, "\\" + character)
    return text


def _code(text: str) -> str:
    # Indented, so that no character of the text can end the block.
    return "\n".join("    " + line for line in text.rstrip("\n").split("\n"))
