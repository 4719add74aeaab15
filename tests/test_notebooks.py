"""The notebooks run: their code as scripts of fewer slots and, where Jupyter's client is there, whole in a kernel."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MOST_SECOND = 600
SHORTER = {
    r'"slots": \d+': '"slots": 8',
    r"episodes=\d+": "episodes=2",
    r'"episodes": \d+': '"episodes": 2',
    r"seeds=\d+": "seeds=1",
    r"target_loss=0.5": "target_loss=0.9",  # so few episodes have wide intervals
}


def cells(path: Path, kind: str) -> list[str]:
    """Sources of the notebook's cells of a kind."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def test_the_five_notebooks_are_there():
    assert len(NOTEBOOKS) == 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_its_title_and_keeps_no_output(path):
    assert cells(path, "markdown")[0].startswith("# ")
    code = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_runs(path, tmp_path):
    script = tmp_path / "notebook.py"
    code = "\n\n".join(cells(path, "code"))
    for wanted, instead in SHORTER.items():
        code = re.sub(wanted, instead, code)
    script.write_text(code, encoding="utf-8")
    # many small steps: several threads would only wait for each other
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(script)]
    ended = subprocess.run(  # noqa: S603
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=MOST_SECOND
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_kernel(path):
    pytest.importorskip("nbclient", reason="the extra docs is not installed")
    spec = importlib.util.spec_from_file_location("notebook_pages", ROOT / "docs" / "site" / "notebook_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    text, _ = pages.page(path, run=True)
    assert "```text\n" in text
