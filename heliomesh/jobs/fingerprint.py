"""Names by content: what files hold and what user-given code says, so that a changed file is another job.

User-given code counts with all that it imports, as far as that is user-given too: modules beside it, those of its
package and of its distribution, each by its content. What other distributions brought counts by its version, our own
code by `job.RESULTS_VERSION`, Python's by nothing. Code of a notebook counts by its own source alone, and data files
that code reads do not count.
"""

import ast
import hashlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from heliomesh.common import catalog
from heliomesh.common.durable import file_sha256

Parts = dict[str, str]  # sha256 of modules, versions of distributions, by their names
COMPUTING = ("numpy", "torch")  # distributions that compute every result, whoever names them
_OWN = "heliomesh"
_INSTALLED = ("site-packages", "dist-packages")  # folders of what was installed from elsewhere


def of_path(path: Path) -> str:
    """Hexadecimal sha256 of a file, or of all files of a folder with their names; of nothing where none is there."""
    digest = hashlib.sha256()
    for file in sorted(_files_below(path)) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(f"{file.relative_to(path)}\0".encode("utf-8", "surrogateescape"))
            digest.update(bytes.fromhex(file_sha256(file)))
    return digest.hexdigest()


def _files_below(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """All files of a folder, those behind links too; a link to a folder above it leads nowhere new."""
    above |= {os.path.realpath(folder)}
    for path in folder.iterdir():
        if not path.is_dir():
            yield path
        elif os.path.realpath(path) not in above:
            yield from _files_below(path, above)


def minor(version: str) -> str:
    """The part of a version that counts: without the last number, which should change no result."""
    return ".".join(version.partition("+")[0].split(".")[:2])


def of_code(named: str) -> Parts | None:
    """What user-given code says, part by part: ``module:name``; None for heliomesh's own."""
    module, colon, path = named.partition(":")
    if module.partition(".")[0] == _OWN or not colon:
        return None
    found = find_module(module)
    if found is None:  # what code of a notebook uses of the notebook is not followed
        said = _source(catalog.load(named)) if module == "__main__" else named
        return {module: hashlib.sha256(said.encode()).hexdigest()}
    return _parts([module, f"{module}.{path}".rstrip(".")], found.distributions.difference(COMPUTING))


def _parts(names: Iterable[str], own_distributions: frozenset[str]) -> Parts:
    """What modules say and all that they import; of other distributions the version."""
    parts: Parts = {}
    seen = {""}
    waiting = set(names) - seen
    while waiting:
        name = waiting.pop()
        seen.add(name)
        found = None if name.partition(".")[0] == _OWN else find_module(name)
        waiting |= {name.rpartition(".")[0]} - seen  # a package runs before its modules
        if found is None or found.origin == "standard":
            continue
        brought_by = found.distributions if found.origin == "installed" else frozenset()
        if brought_by - own_distributions:
            parts |= {one: minor(version(one)) for one in brought_by.difference(COMPUTING)}
        else:
            if found.file is not None:
                parts[name] = hashlib.sha256(found.content).hexdigest()
            waiting |= found.imports - seen
    return dict(sorted(parts.items()))


def of_variant(package: str, variant: object) -> Parts | None:
    """The same for a variant of a catalog: None for a file of ours, also where it offers none of that name."""
    named = catalog.spelled(variant)
    outside = named if ":" in named else catalog.offered(package, named)
    # an entry point may name a module
    return None if outside is None else of_code(outside if ":" in outside else f"{outside}:")


def _source(value: Any) -> str:
    """The text of an object that no file holds, such as a notebook's; else its compiled code, else its name."""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        code = getattr(value, "__code__", None)
        return repr(value) if code is None else repr(_compiled(code))


def _compiled(code: CodeType) -> list[object]:
    """What a function does, without the places in memory that its text would show."""
    inner = [_compiled(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return [code.co_code, code.co_names, inner]


# What a module imports, read from its source: none of its code is run.


@dataclass(frozen=True)
class Module:
    """A module as it is on the disk."""

    name: str
    content: bytes  # none of a namespace package
    file: Path | None  # the same
    locations: tuple[str, ...]  # of its submodules; none of a module that is no package

    @property
    def origin(self) -> Literal["installed", "standard", "own"]:
        """Whether it was installed, and not from its folder, comes with Python, or is the user's own."""
        paths = self.locations if self.file is None else (str(self.file),)
        if any(part in _INSTALLED for path in paths for part in Path(path).parts):
            return "installed"
        folders = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
        return "standard" if any(path.startswith(folders) for path in paths) else "own"

    @property
    def distributions(self) -> frozenset[str]:
        """Of which installed distributions it is part."""
        return frozenset(_distributions(tuple(sys.path)).get(self.name.partition(".")[0], ()))

    @property
    def imports(self) -> frozenset[str]:
        """Names of all that it may import, with what it takes from there, which may be modules."""
        if self.file is None or self.file.suffix != ".py":
            return frozenset()
        return _imports(self.content, self.name if self.locations else self.name.rpartition(".")[0])


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
        locations = getattr(_spec(parent), "submodule_search_locations", None)
        return importlib.machinery.PathFinder.find_spec(own, list(locations or ()))
    found = (finder.find_spec(name, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in found if spec is not None), None)


@lru_cache(maxsize=1024)
def _imports(source: bytes, package: str) -> frozenset[str]:
    """What a source imports, relative names within ``package``."""
    try:
        return frozenset(imports_of(ast.parse(source), package))
    except (SyntaxError, ValueError):  # whoever imports it will be told
        return frozenset()


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
            given = [
                *zip(("name", "package"), node.args, strict=False),
                *((one.arg, one.value) for one in node.keywords),
            ]
            texts = {name: one.value for name, one in given if isinstance(one, ast.Constant)}
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
