"""Hooks of MkDocs: add the generated pages, and lead links that leave `docs/` to pages of the site."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import api_pages
import command_line
import notebook_pages
import paper_figures
import scenario_fields
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\(|src=\")([^)\s\"#]+)([^)\s\"]*)")
# pages made of files outside docs/: where they stand in the site
PROJECT = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CODE_OF_CONDUCT.md": "project/code_of_conduct.md",
    "SECURITY.md": "project/security.md",
    "results/bench/leaderboard.md": "leaderboard.md",
    "results": "reference/paper_figures.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".csv": "text", ".c": "c", ".h": "c", ".sh": "bash"}


def on_files(files: Files, config: Any) -> Files:
    """Add every generated page; runs before the navigation is made."""
    for uri, content in _generated(bool(config.extra["run_notebooks"])):
        files.append(File.generated(config, uri, content=content))
    texts = [(file.src_uri, file.content_string) for file in files if file.src_uri.endswith(".md")]
    for path in sorted({path for uri, text in texts for path in _left_by(uri, text)}):
        files.append(File.generated(config, in_site(path), content=_source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to files outside `docs/` to their pages."""
    return relinked(markdown, page.file.src_uri)


def _generated(run_notebooks: bool) -> Iterator[tuple[str, str | bytes]]:
    for origin, uri in PROJECT.items():
        if (ROOT / origin).is_file():
            yield uri, (ROOT / origin).read_text(encoding="utf-8")
    yield "reference/scenario_fields.md", scenario_fields.page()
    yield "reference/command_line.md", command_line.page()
    yield "reference/paper_figures.md", paper_figures.page()
    for name, text in api_pages.pages().items():
        yield f"reference/api/{name}.md", text
    for path in sorted((ROOT / "results").glob("*.svg")):
        yield f"results/{path.name}", path.read_bytes()
    for path in sorted((ROOT / "results" / "printed").glob("*.txt")):
        yield f"results/printed/{path.name}", path.read_bytes()
    for path in sorted((ROOT / "results").glob("*.md")):
        yield f"results/{path.name}", _results_page(path)
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_pages.page(path, run_notebooks)
        yield f"notebooks/{path.stem}.md", text
        for name, content in pictures.items():
            yield f"notebooks/{name}", content


def _results_page(path: Path) -> str:
    """A table of results under its picture."""
    title, _, rest = path.read_text(encoding="utf-8").partition("\n")
    return f"# {title.lstrip('# ')}\n\n![{title.lstrip('# ')}]({path.stem}.svg)\n{rest}"


def in_site(path: str) -> str:
    """Where a file or folder of the repository stands in the site."""
    if path in PROJECT:
        return PROJECT[path]
    for folder, there in (("docs/", ""), ("results/", "results/")):
        if path.startswith(folder):
            return there + path.removeprefix(folder)
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def in_repository(uri: str) -> str:
    """The file of the repository that a page of the site is made of; inverse of `in_site`."""
    origins = {there: origin for origin, there in PROJECT.items() if origin != "results"}
    return origins.get(uri, uri if uri.startswith("results/") else f"docs/{uri}")


def _targets(uri: str, text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Links of a page to files of the repository, with the paths of those files."""
    folder = posixpath.dirname(in_repository(uri))
    for link in LINK.finditer(text):
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if not re.match("[a-z]+:", link[2]) and not path.startswith("..") and (ROOT / path).exists():
            yield link, path


def _left_by(uri: str, text: str) -> Iterator[str]:
    """Files that a page links and that have no page but the source's."""
    for _, path in _targets(uri, text):
        if in_site(path).startswith("source/"):
            yield path
            yield from (str(one.relative_to(ROOT).as_posix()) for one in _within(ROOT / path))


def relinked(text: str, uri: str) -> str:
    """The page's text with links to pages of the site in place of files of the repository."""
    here = posixpath.dirname(uri)
    for link, path in reversed(list(_targets(uri, text))):
        target = posixpath.relpath(in_site(path), here or ".")
        text = text[: link.start()] + link[1] + target + link[3] + text[link.end() :]
    return text


def _within(folder: Path) -> list[Path]:
    """Files of code and data in a folder; none for a file."""
    return [path for path in sorted(folder.rglob("*")) if path.suffix in LANGUAGES and path.is_file()]


def _source_page(path: str) -> str:
    """A file as it is, or the list of a folder's files."""
    file = ROOT / path
    if file.is_dir():
        inside = [(one.relative_to(file).as_posix(), one) for one in _within(file)]
        return f"# `{path}`\n\n" + "\n".join(f"- [`{name}`]({name}.md)" for name, _ in inside) + "\n"
    text = file.read_text(encoding="utf-8").replace("````", "")
    return f"# `{path}`\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text}````\n"
