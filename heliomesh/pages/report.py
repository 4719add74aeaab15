"""Write the page of some runs: `hm.report`, and `heliomesh report`."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from heliomesh.durable import write_text
from heliomesh.pages.page import report_page
from heliomesh.studies.compare import Comparison


def report(
    runs: Sequence[str | Path] | Comparison,
    out: str | Path = "report.html",
    *,
    title: str | None = None,
    every: int = 1,
) -> Path:
    """Write one HTML page of runs, which opens from the disk and needs no network; returns its path.

    ``runs`` are folders as `hm.run` leaves them, or a comparison that was trained and had a store. ``every`` keeps
    every such slot in the player, for long runs. Raises TrainingError, TraceError, TooLargeError or ScenarioError.
    """
    with TemporaryDirectory() as folder:
        folders = runs.save_runs(folder) if isinstance(runs, Comparison) else runs
        page = report_page(folders, title, every)
    write_text(Path(out), page)
    return Path(out)
