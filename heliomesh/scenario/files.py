"""Scenario files: where they lie, how they are read, and the files that they name."""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from heliomesh.common import catalog
from heliomesh.scenario.errors import ScenarioError


def shipped() -> list[str]:
    """Names of the scenarios that come with the package."""
    folder = files("heliomesh") / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_text(field: str, path: str | Path) -> str:
    """Text of a file the user named in ``field``; raises ScenarioError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # some editors mark UTF-8 by a first character
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScenarioError(field, "a readable text file", f"file {str(path)!r}: {reason}") from None


def parsed(field: str, text: str, what: str) -> dict[str, Any]:
    """TOML as plain data; raises ScenarioError on ``field``, which says ``what`` the text is."""
    try:
        return tomllib.loads(text)
    except (TypeError, ValueError, RecursionError) as error:  # numbers and nesting may exceed what Python reads
        raise ScenarioError(field, "TOML", f"{what}: {error}") from None


def read_scenario(name_or_path: str | Path) -> tuple[str, str, Path]:
    """Text, default name and folder of a scenario."""
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.is_file():
        name = path.stem.encode("utf-8", "backslashreplace").decode("utf-8")  # a file's name may be any bytes
        return read_text("scenario", path), name, path.resolve().parent
    known = shipped()
    if str(name_or_path) not in known:
        hint = catalog.nearest(str(name_or_path), known)
        expected = f"a .toml file or one of {', '.join(known)}"
        raise ScenarioError("scenario", expected, f"value {str(name_or_path)!r}{hint}")
    folder = files("heliomesh") / "scenarios"
    text = (folder / f"{name_or_path}.toml").read_text(encoding="utf-8")
    return text, str(name_or_path), Path(str(folder))


FILE_FIELDS = (("harvest", "file"), ("link", "table"))  # fields that name a file, which counts by its content
PART_FIELDS = ("radio", "board")


def find_files(data: dict[str, Any], folder: Path) -> None:
    """Let files of a scenario's file be relative to its folder, not to the shell's."""
    own_parts = [("energy", kind) for kind in PART_FIELDS]
    for section, field in (*FILE_FIELDS, ("network", "places_file"), *own_parts):
        table = data.get(section)
        name = table.get(field) if isinstance(table, dict) else None
        if isinstance(name, str) and (field not in PART_FIELDS or name.endswith(".toml")):
            data[section][field] = str(folder / name)
