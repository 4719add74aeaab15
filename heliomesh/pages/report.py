"""Write the page of some runs: `hm.report`, and `heliomesh report`."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from heliomesh.common.arguments import checked
from heliomesh.common.durable import write_text
from heliomesh.pages.page import report_page
from heliomesh.studies.compare import Comparison


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
    with TemporaryDirectory() as folder:
        if isinstance(runs, Comparison):
            page = report_page(runs.save_runs(folder), title, every, runs.absences())
        else:
            page = report_page(runs, title, every)
    write_text(Path(out), page)
    return Path(out)
