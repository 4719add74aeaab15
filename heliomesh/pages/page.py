"""The report: one HTML file with its style, script and data inside, which opens from the disk and asks nobody.

A content security policy lets exactly this style and this script run, by their hashes, and forbids every request. The
data are JSON in which no ``<`` is left, so no name of a run or scenario can end the element it stands in.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from heliomesh.common.arguments import checked
from heliomesh.common.durable import write_text
from heliomesh.pages.colours import theme_css
from heliomesh.pages.page_data import page_data
from heliomesh.studies.compare import Comparison

# one script in the page, in this order: what is used while a file is read stands in an earlier one
_SCRIPTS = "arrays elements links saving sortable tables series charts answer player network device page"


@checked
def report(
    runs: Sequence[str | Path] | Comparison,
    out: str | Path = "report.html",
    *,
    title: str | None = None,
    every: int = 1,
) -> Path:
    """Write one HTML page of runs, which opens from the disk and needs no network.

    Parameters
    ----------
    runs
        Folders as `run` leaves them, or a comparison that was trained and had a store. The page of a comparison also
        says which planners refused, and why.
    out
        The page's file.
    title
        By default made of the runs.
    every
        Keep every such slot in the player, for long runs.

    Returns
    -------
    pathlib.Path
        The page's file.

    Raises
    ------
    TrainingError, TraceError, TooLargeError, ScenarioError
        Where a folder holds no runs that fit on a page.
    """
    absences = runs.absences() if isinstance(runs, Comparison) else ()
    with TemporaryDirectory() as kept:
        folders = runs.save_runs(kept) if isinstance(runs, Comparison) else runs
        page = report_page(folders, title, every, absences)
    write_text(Path(out), page)
    return Path(out)


def report_page(
    folders: Sequence[str | Path], title: str | None = None, every: int = 1, absences: Sequence[str] = ()
) -> str:
    """The page of these run folders as text; raises as `page_data` does.

    ``absences`` says why planners have no run.
    """
    return render(page_data(folders, title, every) | {"refusals": list(absences)})


def render(data: dict[str, Any]) -> str:
    """Put data into the page."""
    told = data.get("answer", {})
    parts = {
        "title": escape(data["title"].encode("utf-8", "replace").decode()),
        "answer": escape(told.get("sentence", "")),
        "details": escape(told.get("details", "")),
        "refusals": "".join(f"<li>{escape(sentence)}</li>" for sentence in data.get("refusals", ())),
        "data": embedded_json(data),
    }
    script, style = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS.split()), theme_css() + _asset("page.css")
    own = f"script-src '{source_hash(script)}'; style-src '{source_hash(style)}'"
    policy = f"default-src 'none'; {own}; img-src data:; base-uri 'none'; form-action 'none'"
    whole = {**parts, "policy": policy, "style": style, "script": script}
    # one pass: what is put in is not searched for further places
    return re.sub(r"\{\{(\w+)\}\}", lambda place: whole[place[1]], _asset("page.html"))


def embedded_json(value: object) -> str:
    """JSON that is safe inside an HTML element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def source_hash(text: str) -> str:
    """An inline element's text as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _asset(name: str) -> str:
    return files("heliomesh.pages").joinpath("assets", name).read_text(encoding="utf-8")
