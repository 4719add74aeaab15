"""What the pages name is there: files, names in code, commands and their options."""

import re
from pathlib import Path

import pytest

from heliomesh.cli import COMMANDS, loaded, told

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
INLINE = re.compile(r"`heliomesh ([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"")
BLOCK = re.compile(r"^(?:\S*/)?heliomesh ([^#\n]+)", re.MULTILINE)


def test_every_name_of_the_nomenclature_stands_in_its_file():
    rows = (ROOT / "docs" / "nomenclature.md").read_text(encoding="utf-8").replace(r"\|", "").splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.count("|") == 6]
    named = [(row[1], row[4].strip("`")) for row in cells if row[4].startswith("`")]
    assert len(named) > 100
    for names, file in named:
        words = set(re.findall(r"\w+", (ROOT / "heliomesh" / file).read_text(encoding="utf-8")))
        for name in re.findall(r"`([\w.]+)`", names):
            assert set(name.split(".")) <= words, f"{name} is not in {file}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_code_that_a_page_names_is_there(page):
    for name in re.findall(r"`([\w./-]+\.py)`", page.read_text(encoding="utf-8")):
        assert list(ROOT.glob(name)) or list((ROOT / "heliomesh").rglob(name)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    for target in (first or second for first, second in LINK.findall(page.read_text(encoding="utf-8"))):
        if re.match("[a-z]+:", target):
            continue  # elsewhere on the net
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        assert not heading or heading in headings(file), target


def headings(page: Path) -> list[str]:
    """Names by which links address the page's headings."""
    titles = re.findall("^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_exists_and_knows_its_options(page):
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")  # a command may go on in the next line
    blocks = "".join(re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    for line in [*INLINE.findall(text), *BLOCK.findall(blocks)]:
        words = line.split()
        assert words.pop(0) in COMMANDS or line.startswith("--"), line
        if line.startswith("--"):
            assert line.split()[0] in ("--trust", "--version", "--help"), line
            continue
        command = loaded(line.split()[0])
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)} <= known, line


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name):
    """It is read from the source, so that the list needs no imports."""
    command = loaded(name)
    assert " ".join(told(COMMANDS[name]).split()) == " ".join(str(command.help).split())
    assert told(COMMANDS[name])
