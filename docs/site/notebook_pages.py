"""Pages of notebooks: text, code and, where they are run, what the code prints and draws."""

import base64
import json
import re
import tempfile
from pathlib import Path
from typing import Any

_TIMEOUT_SECOND = 600


def page(path: Path, run: bool) -> tuple[str, dict[str, bytes]]:
    """Markdown of a notebook, and its pictures by file name; ``run`` executes the cells in a kernel first."""
    cells = executed(path) if run else json.loads(path.read_text(encoding="utf-8"))["cells"]
    pictures: dict[str, bytes] = {}
    parts = []
    for cell in cells:
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
            parts += [_shown(output, path.stem, pictures) for output in cell.get("outputs", [])]
    title, *rest = parts
    download = f"[Download this notebook]({path.name}){{ .md-button download }}"
    return "\n\n".join([title, *rest, download]) + "\n", pictures


def executed(path: Path) -> list[Any]:
    """The cells of a notebook after a run in an empty folder; raises CellExecutionError where one fails."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"timeout": _TIMEOUT_SECOND, "resources": {"metadata": {"path": folder}}}
        NotebookClient(notebook, kernel_name="python3", **settings).execute()
    return list(notebook.cells)


def _shown(output: Any, stem: str, pictures: dict[str, bytes]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        name = f"{stem}-{len(pictures) + 1}.png"
        pictures[name] = base64.b64decode(_text(data["image/png"]))
        return f"![What the code above draws]({name})"
    if "text/html" in data:
        return _plain_table(_text(data["text/html"]))
    text = _text(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```"


def _plain_table(html: str) -> str:
    """A table of pandas as plain HTML in one paragraph, so that it looks like all other tables."""
    bare = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
    return re.sub(r"\s*\n\s*", "", re.sub(r' (border|class|style)="[^"]*"', "", bare))


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)
