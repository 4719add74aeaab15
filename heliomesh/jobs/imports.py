"""What a module imports and which data files it names, read from its source: none of its code is run."""

import ast
import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from heliomesh.scenario.errors import ScenarioError, refuse

FILES = "HELIOMESH_FILES"  # a list in a module: files and folders beside it that decide what it does
_INSTALLED = ("site-packages", "dist-packages")  # folders of what was installed from elsewhere


@dataclass(frozen=True)
class Module:
    """A module as it is on the disk."""

    name: str
    content: bytes  # none of a namespace package
    file: Path | None  # the same
    locations: tuple[str, ...]  # of its submodules; none of a module that is no package

    @property
    def is_standard(self) -> bool:
        """Whether it comes with Python."""
        folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
        return not self.is_installed and any(path.startswith(folder) for path in self._paths for folder in folders)

    @property
    def is_installed(self) -> bool:
        """Whether it was installed, and not from its folder."""
        return any(part in _INSTALLED for path in self._paths for part in Path(path).parts)

    @property
    def _paths(self) -> tuple[str, ...]:
        return self.locations if self.file is None else (str(self.file),)

    @property
    def distributions(self) -> frozenset[str]:
        """Of which installed distributions it is part."""
        return frozenset(_distributions(tuple(sys.path)).get(self.name.partition(".")[0], ()))

    @property
    def read(self) -> tuple[frozenset[str], dict[str, Path]]:
        """Names of all that it may import, with what it takes from there, which may be modules; data files by name.

        Raises ScenarioError where a file that it names is not there.
        """
        if self.file is None or self.file.suffix != ".py":
            return frozenset(), {}
        imports, listed = _read(self.content, self.name if self.locations else self.name.rpartition(".")[0])
        return imports, {} if listed is None else named_files(str(self.file), listed, self.file.parent)


@cache
def _distributions(path: tuple[str, ...]) -> Any:
    """Distributions by top-level module, on a search path of Python: looking through all takes its time."""
    return packages_distributions()


def find_module(name: str) -> Module | None:
    """The module of a dotted name; None where Python would find none, or made it itself."""
    if name == "__main__":  # a script; a notebook has no file
        script = getattr(sys.modules["__main__"], "__file__", None)
        return None if script is None else Module("__main__", Path(script).read_bytes(), Path(script), ())
    spec = _spec(name)
    if spec is None:
        return None
    locations = tuple(spec.submodule_search_locations or ())
    if not spec.has_location or spec.origin is None:
        return Module(name, b"", None, locations) if locations else None
    file = Path(spec.origin)
    in_archive: Any = getattr(spec.loader, "get_data", None)
    return Module(name, in_archive(spec.origin) if in_archive else file.read_bytes(), file, locations)


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is, without an import of the packages around it."""
    parent, _, own = name.rpartition(".")
    if parent:
        package = _spec(parent)
        locations = list(package.submodule_search_locations or ()) if package is not None else []
        return importlib.machinery.PathFinder.find_spec(own, locations)
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    found = (finder(name, None) for finder in finders if finder is not None)
    return next((spec for spec in found if spec is not None), None)


@lru_cache(maxsize=1024)
def _read(source: bytes, package: str) -> tuple[frozenset[str], object]:
    """What a source imports, relative names within ``package``, and what it assigns to HELIOMESH_FILES."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # whoever imports it will be told
        return frozenset(), None
    return frozenset(imports_of(tree, package)), _assigned_files(tree)


def imports_of(tree: ast.AST, package: str) -> Iterator[str]:
    """Names that a syntax tree imports, at its top or within functions."""
    for node in _run_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__"):
            given = dict(zip(("name", "package"), node.args, strict=False))
            given |= {argument.arg: argument.value for argument in node.keywords if argument.arg is not None}
            texts = {name: one.value for name, one in given.items() if isinstance(one, ast.Constant)}
            yield _absolute(str(texts.get("name", "")), str(texts.get("package") or package))


def _name(node: ast.expr) -> str | None:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def _run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only type checkers read."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _absolute(name: str, package: str) -> str:
    """A name that may begin with dots, in full; an empty one where there is no such package."""
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:
        return ""


def _assigned_files(tree: ast.Module) -> object:
    """What the module assigns to HELIOMESH_FILES; None where it does not, a text where that is no plain list."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == FILES for target in targets):
            value: ast.expr = node.value  # type: ignore[attr-defined]
            try:
                return ast.literal_eval(value)
            except ValueError:
                return ast.unparse(value)
    return None


def named_files(where: str, listed: object, folder: Path) -> dict[str, Path]:
    """Files and folders by name, relative to a folder; raises ScenarioError for other lists and absent files."""
    if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
        expected = "a list of names of files or folders, as plain text"
        raise ScenarioError(f"{where}: {FILES}", expected, f"value {listed!r:.60}")
    for name in listed:
        refuse(not (folder / name).exists(), f"{where}: {FILES}", f"files or folders in {folder}", f"value {name!r}")
    return {name: folder / name for name in listed}
