"""The notebooks run: their code as scripts of fewer slots and, where Jupyter's client is there, whole in a kernel."""

import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path

import matplotlib
import pytest
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SHORTER = {
    r'"slots": \d+': '"slots": 8',
    r"episodes=\d+": "episodes=2",
    r'"episodes": \d+': '"episodes": 2',
    r"train=\d+": "train=1",
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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder; what is imported from it is forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    matplotlib.use("Agg")
    yield tmp_path
    plt.close("all")
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_runs(path, folder, capsys):
    script = folder / "notebook.py"
    code = "\n\n".join(cells(path, "code"))
    for wanted, instead in SHORTER.items():
        code = re.sub(wanted, instead, code)
    script.write_text(code, encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")  # here: a process of its own would load everything again
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_kernel(path):
    pytest.importorskip("nbclient", reason="the extra docs is not installed")
    spec = importlib.util.spec_from_file_location("notebook_pages", ROOT / "docs" / "site" / "notebook_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    text, _ = pages.page(path, run=True)
    assert "```text\n" in text
