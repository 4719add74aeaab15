"""Names by content: what files hold and what user-given code says, so that a changed file is another job.

User-given code counts with all that it imports, as far as that is user-given too: modules beside it, those of its
package and of its distribution, each by its content. What other distributions brought counts by its version, our own
code by `job.RESULTS_VERSION`, Python's by nothing.
"""

import ast
import hashlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import CodeType
from typing import Any

from heliomesh.common import catalog
from heliomesh.jobs.imports import FILES, find_module, imports_of, named_files

Parts = dict[str, str]  # sha256 of modules and of data files, versions of distributions, by their names
COMPUTING = ("numpy", "torch")  # distributions that compute every result, whoever names them
_OWN = "heliomesh"


def of_path(path: Path) -> str:
    """Hexadecimal sha256 of a file, or of all files of a folder with their names; of nothing where none is there."""
    digest = hashlib.sha256()
    for file in sorted(_files_below(path)) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(f"{file.relative_to(path)}\0".encode("utf-8", "surrogateescape"))
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
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


def of_code(named: str | Callable[..., Any] | Any) -> Parts | None:
    """What user-given code says, part by part: ``module:name``, or a Python object; None for heliomesh's own."""
    module, _, path = named.partition(":") if isinstance(named, str) else (_module_of(named), "", "")
    if module.partition(".")[0] == _OWN or (isinstance(named, str) and ":" not in named):
        return None
    if module == "__main__" and find_module(module) is None:
        return _of_notebook(catalog.load(named) if isinstance(named, str) else named)
    found = find_module(module)
    if found is None:
        return {module: _sha256(_source(named))}
    return _parts([module, f"{module}.{path}".rstrip(".")], found.distributions.difference(COMPUTING))


def _parts(names: Iterable[str], own_distributions: frozenset[str] = frozenset()) -> Parts:
    """What modules say, their data files, and all that they import; of other distributions the version."""
    parts: Parts = {}
    seen = {""}
    waiting = set(names) - seen
    while waiting:
        name = waiting.pop()
        seen.add(name)
        found = None if name.partition(".")[0] == _OWN else find_module(name)
        waiting |= {name.rpartition(".")[0]} - seen  # a package runs before its modules
        if found is None or found.is_standard:
            continue
        brought_by = found.distributions if found.is_installed else frozenset()
        if brought_by - own_distributions:
            parts |= {one: minor(version(one)) for one in brought_by.difference(COMPUTING)}
        else:
            if found.file is not None:
                parts[name] = hashlib.sha256(found.content).hexdigest()
            imports, files = found.read
            parts |= {f"{name}: {own}": of_path(path) for own, path in files.items()}
            waiting |= imports - seen
    return dict(sorted(parts.items()))


def of_variant(package: str, variant: object) -> Parts | None:
    """The same for a variant of a catalog: None for a file of ours, also where it offers none of that name."""
    named = catalog.spelled(variant)
    outside = named if ":" in named else catalog.offered(package, named)
    if outside is None:
        return None
    return of_code(outside if ":" in outside else f"{outside}:")  # an entry point may name a module


def _module_of(value: Any) -> str:
    return str(value.__name__ if inspect.ismodule(value) else getattr(inspect.unwrap(value), "__module__", ""))


def _of_notebook(code: Any) -> Parts:
    """The same for code of a notebook, which has no file: its source, and that of all of the notebook that it names.

    Functions, classes and plain constants count by what they say, modules and what comes from them as elsewhere.
    """
    main = vars(sys.modules["__main__"])
    said: Parts = {}
    modules: set[str] = set()
    waiting = {"": code}
    while waiting:
        name, one = waiting.popitem()
        if not _is_of_notebook(one):
            modules.add(_module_of(one))
            continue
        if isinstance(one, _CONSTANT):
            said[name] = repr(one)
            continue
        said[name] = text = _source(one)
        with suppress(SyntaxError):  # where it is no source
            tree = ast.parse(textwrap.dedent(text))
            modules |= set(imports_of(tree, ""))
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            found = {other: main[other] for other in used if other in main and other not in said}
            waiting |= {other: value for other, value in found.items() if _decides(value)}
    files = named_files("notebook", main.get(FILES, []), Path.cwd())
    own = {f"__main__.{name}": _sha256(text) for name, text in said.items()}
    return own | _parts(modules) | {f"__main__: {name}": of_path(path) for name, path in files.items()}


_CONSTANT = (bool, int, float, str, tuple, type(None))


def _is_of_notebook(value: Any) -> bool:
    """Whether a global of a notebook is a constant, or code that was written there."""
    return isinstance(value, _CONSTANT) or getattr(value, "__module__", None) == "__main__"


def _decides(value: Any) -> bool:
    """Whether a global of a notebook counts: one that was made there, a module, or a function or class of one."""
    return _is_of_notebook(value) or inspect.ismodule(value) or inspect.isroutine(value) or inspect.isclass(value)


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


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
