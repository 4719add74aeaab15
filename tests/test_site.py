"""The site: generated pages hold everything, every page has a place, and the strict build passes."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import heliomesh as hm
from heliomesh.cli import COMMANDS
from heliomesh.scenario.scenario import Scenario, sections
from heliomesh.studies.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def module(name):
    """A module that makes pages."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "site" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_every_page_of_the_docs_has_a_place_in_the_navigation():
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    pages |= {f"notebooks/{path.stem}.md" for path in (DOCS / "notebooks").glob("*.ipynb")}
    listed = re.findall(r": ([\w/]+\.md)$", CONFIG, re.MULTILINE)
    assert pages - set(listed) == set(), "add them to nav in mkdocs.yml"
    assert len(listed) == len(set(listed))


def test_the_reference_has_every_public_name_once():
    pages = module("api_pages")
    names = [name for _, _, names in pages.PAGES.values() for name in names]
    assert sorted(names) == sorted(set(hm.__all__) - {"__version__"})
    texts = "\n".join(pages.pages().values())
    assert all(f'heading: "hm.{name}"' in texts for name in names)


def test_the_reference_has_every_field_of_every_table():
    text = module("scenario_fields").page()
    assert text.count("\n## ") == 1 + len(sections())
    fields = sum(len(settings.model_fields) for settings in sections().values())
    plain = [name for name, field in Scenario.model_fields.items() if field.description]
    assert len(re.findall(r"^\| `", text, re.MULTILINE)) == fields + len(plain)
    assert "| `capacity_joule` | number > 0 or list | `4.0` | J | most energy that a battery holds \\[J] |" in text
    assert '| `sky` | `"independent"` or `"mixed"` or `"common"` | `"independent"` | – |' in text


def test_the_reference_has_every_command_with_its_options():
    text = module("command_line").page()
    for name in COMMANDS:
        assert f"\n## `heliomesh {name}`\n" in text
    assert "### `heliomesh scenario validate`" in text
    assert "| `--episodes` | whole number | `64` |" in text


def test_the_reference_says_which_figure_an_experiment_is():
    text = module("paper_figures").page()
    for one in EXPERIMENTS:
        assert f"`{one.name}`" in text
    assert [row.split(" | ")[0] for row in re.findall(r"^\| ((?:Fig|Table).*)$", text, re.MULTILINE)] == [
        *("Fig. 2", "Fig. 2, with more interference", "Fig. 2, with the paper's panel", "Fig. 3", "Fig. 4", "Fig. 5"),
        "Table I",
    ]


def test_the_citation_has_the_version_of_the_package():
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    quick = {"RUN_NOTEBOOKS": "false", "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    ended = subprocess.run(  # noqa: S603
        command, cwd=ROOT, env=os.environ | quick, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    for page in ("index", "reference/api/planning", "reference/scenario_fields", "notebooks/my_own_planner"):
        assert (tmp_path / "site" / f"{page}.html").stat().st_size > 10_000
    for page in (tmp_path / "site").rglob("*.html"):
        assert not re.search(r'(src|<link[^>]* href)="(https?:)?//', page.read_text(encoding="utf-8")), page
