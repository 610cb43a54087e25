"""The style sheet of the report: one column, light or dark as the reader's system, readable on paper."""

from lipdp.report import plots

# Light colors of the plots, and what stands for them on a dark page.
_ON_DARK = {
    plots.INK: "#e6eaf0",
    plots.MUTED: "#a3afbd",
    plots.GRID: "#333d48",
    plots.BLUE: "#6ba6ee",
    plots.ORANGE: "#f0965a",
    plots.GREEN: "#5cc492",
}


def dark(svg: str) -> str:
    """Returns a plot that changes its colors where the reader prefers a dark page."""
    rules = "".join(
        f'[style*="{what}: {light}"] {{ {what}: {color} !important }} '
        for light, color in _ON_DARK.items()
        for what in ("fill", "stroke")
    )
    head, tail = svg.split("<defs>", 1)
    return f"{head}<style>@media screen and (prefers-color-scheme: dark) {{ {rules}}}</style><defs>{tail}"


CSS = """
:root { color-scheme: light dark; --page: #fff; --ink: #1f2933; --muted: #616e7c; --line: #e4e7eb;
  --soft: #f5f7fa; --blue: #2563a8 }
@media screen and (prefers-color-scheme: dark) { :root { --page: #14191f; --ink: #e6eaf0; --muted: #a3afbd;
  --line: #333d48; --soft: #1d242c; --blue: #6ba6ee } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem }
h1 { font-size: 1.75rem; margin: 0; letter-spacing: -.01em; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2.75rem 0 .75rem; padding-bottom: .35rem;
  border-bottom: 1px solid var(--line) }
h3 { font-size: .95rem; margin: 1rem 0 .25rem }
p { max-width: 46rem; margin: .5rem 0 }
.muted { color: var(--muted); font-weight: normal }
.lead { font-size: 1.1rem; margin: 1rem 0 1.5rem; max-width: none }
.terms { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: .3rem 2rem; font-size: .9rem;
  margin: 0 0 1.25rem; color: var(--muted) }
.terms dt { display: inline; color: var(--ink); font-weight: 600; margin-right: .35em }
.terms dd { display: inline; margin: 0 }
.note { max-width: none; font-size: .9rem; padding: .5rem .9rem; background: var(--soft);
  border-left: 3px solid var(--blue) }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.6rem, 1fr)); gap: .75rem;
  margin: 0 0 1.25rem; padding: 0; list-style: none }
.tiles li { padding: .9rem 1rem; border: 1px solid var(--line); border-radius: .5rem; display: flex;
  flex-direction: column }
.tiles strong { font-size: 1.5rem; line-height: 1.2; font-weight: 650; font-variant-numeric: tabular-nums }
.tiles span { font-size: .9rem }
.tiles small { color: var(--muted); font-size: .78rem }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1.25rem }
figure { margin: 0; padding: .9rem; border: 1px solid var(--line); border-radius: .5rem;
  break-inside: avoid }
figcaption { font-weight: 600; font-size: .95rem; margin-bottom: .4rem }
img { width: 100%; height: auto; display: block }
table { border-collapse: collapse; width: 100%; font-size: .9rem }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere }
tbody th { font-weight: normal }
.numbers th, .numbers td { overflow-wrap: normal }
.numbers td, .numbers th:not(:first-child) { text-align: right; font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 0 2.5rem }
.pair tbody th { color: var(--muted); width: 45% }
pre { background: var(--soft); padding: 1rem; border-radius: .5rem; margin: .5rem 0; white-space: pre-wrap;
  overflow-wrap: anywhere; font: .85rem/1.5 ui-monospace, Consolas, monospace }
@media print { main { padding: 0; max-width: none } h2 { break-after: avoid } }
"""
