"""Names by content: what files hold and what user-given code says, so that a changed file is another job."""

import ast
import hashlib
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from heliomesh import catalog

_OWN = "heliomesh"


def of_path(path: Path) -> str:
    """Hexadecimal sha256 of a file, or of all files of a folder with their names; of nothing where none is there."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(f"{file.relative_to(path)}\0".encode("utf-8", "surrogateescape"))
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def of_code(named: str | Callable[..., Any] | Any) -> str | None:
    """Hexadecimal sha256 of user-given code: ``module:name``, or a Python object; None for heliomesh's own.

    The whole module counts and, if it is part of a package, every module of that package: helpers decide results
    too. Our own code is named by `job.RESULTS_VERSION` instead.
    """
    module = named.partition(":")[0] if isinstance(named, str) else _module_of(named)
    if module.partition(".")[0] == _OWN or (isinstance(named, str) and ":" not in named):
        return None
    top = module.partition(".")[0]
    if top == "__main__":
        return _of_main(catalog.load(named) if isinstance(named, str) else named)
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return hashlib.sha256(_source(named).encode()).hexdigest()
    source = Path(spec.origin)
    if not spec.submodule_search_locations:
        return of_path(source)
    files = sorted(source.parent.rglob("*.py"))
    return hashlib.sha256("".join(of_path(file) for file in files).encode()).hexdigest()


def of_variant(package: str, variant: object) -> str | None:
    """The same for a variant of a catalog: None for a file of ours, also where it offers none of that name."""
    named = catalog.spelled(variant)
    outside = named if ":" in named else catalog.offered(package, named)
    if outside is None:
        return None
    return of_code(outside if ":" in outside else f"{outside}:")  # an entry point may name a module


def _module_of(value: Any) -> str:
    return str(value.__name__ if inspect.ismodule(value) else inspect.unwrap(value).__module__)


def _of_main(value: Any) -> str:
    """The same for code of a script, whose whole file counts, or of a notebook, which has none.

    There the object's source counts, with the functions, classes and plain constants of the notebook that it names.
    """
    main = vars(sys.modules["__main__"])
    if main.get("__file__") is not None:
        return of_path(Path(main["__file__"]))
    said: dict[str, str] = {}
    waiting = {"": value}
    while waiting:
        name, one = waiting.popitem()
        said[name] = repr(one) if isinstance(one, _CONSTANT) else _source(one)
        named = () if isinstance(one, _CONSTANT) else _names(said[name])
        waiting |= {other: main[other] for other in named if other in main and other not in said}
        waiting = {other: found for other, found in waiting.items() if _decides(found)}
    return hashlib.sha256(repr(sorted(said.items())).encode()).hexdigest()


_CONSTANT = (bool, int, float, str, tuple, type(None))


def _decides(value: Any) -> bool:
    """Whether a global of a notebook is a constant, or code that was written there."""
    return isinstance(value, _CONSTANT) or getattr(value, "__module__", None) == "__main__"


def _names(source: str) -> set[str]:
    """Names that a source uses; none where it is no source."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


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
