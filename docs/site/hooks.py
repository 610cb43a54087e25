"""Brings files from outside of docs/ into the site, and turns links to them into links between pages.

Links in documents are those of the repository, where a test follows them. Here they become links of the site.
"""

import itertools
import json
import os
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent.parent
# Pages of the site that stand elsewhere in the repository.
PAGES = {"overview.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \|.*$", re.MULTILINE)


def on_files(files, config):
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        name = f"notebooks/{path.name}"
        # Keeps the name in `nav`; MkDocs takes Markdown files for pages only.
        files.append(File.generated(config, name.replace(".ipynb", ".md"), content=markdown(path)))
    for path in sorted((ROOT / "benchmarks" / "results").iterdir()):
        if path.suffix in (".png", ".svg"):
            files.append(File(f"benchmarks/results/{path.name}", str(ROOT), config.site_dir, True))
    return files


def on_config(config):
    config.nav = json.loads(json.dumps(config.nav).replace(".ipynb", ".md"))
    return config


def on_page_markdown(text, page, config, files):
    uri = page.file.src_uri
    source = pathlib.PurePosixPath(PAGES.get(uri, uri if uri.startswith("notebooks/") else f"docs/{uri}"))
    if uri == "layers.md":
        # Each line of the table links to its own class, not to the page of all layers.
        page.meta["hide"] = ["toc"]  # room for the columns
        text = ROW.sub(lambda row: row[0].replace(".py)", f".py#lipdp.layers.{row[1]})"), text)
    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(lambda match: f"]({moved(match[1], source, uri)})", part) for part in parts[::2]]
    return "".join(parts)


def moved(target, source, uri):
    """Returns a link of the repository as a link from page `uri` of the site."""
    if "://" in target or target.startswith("#"):
        return target
    path, _, anchor = target.partition("#")
    path = os.path.normpath(source.parent / path)
    if path.startswith("lipdp/"):
        path = f"reference/{path.split('/')[1].removesuffix('.py')}.md"
    elif path.startswith("notebooks/"):
        path = path.replace(".ipynb", ".md")
    else:
        pages = {there: here for here, there in PAGES.items()}
        path = pages.get(path, path.removeprefix("docs/"))
    if path.endswith("decisions"):
        path += "/README.md"
    return os.path.relpath(path, pathlib.PurePosixPath(uri).parent) + (f"#{anchor}" if anchor else "")


def markdown(path):
    """Returns a notebook as Markdown, with the outputs that are stored in it; nothing is run."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for stream, outputs in itertools.groupby(cell.get("outputs", []), lambda output: "data" not in output):
            outputs = list(outputs)
            if stream:  # printed at different times, read as one
                outputs = [{"text": "".join(line for output in outputs for line in output.get("text", ""))}]
            parts += map(shown, outputs)
    return "\n\n".join(parts) + "\n"


def shown(output):
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        image = "".join(data["image/png"]).replace("\n", "")
        return f'<img class="output" alt="output" src="data:image/png;base64,{image}">'
    text = "".join(data.get("text/plain", "")).rstrip()
    return f"``` {{ .text .output }}\n{text}\n```" if text else ""
