"""Find a variant by name: a file of ours, an entry point of an installed package, or ``module:name``.

A catalog is a folder of this package, such as `heliomesh.planners`: every file is one variant, and nothing is
registered. An installed package adds variants by entry points of the group ``heliomesh.<folder>``, such as
``heliomesh.harvest``. Code that is merely importable is named ``module:name``.
"""

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from heliomesh.mistakes import MistakeError


class UnknownVariantError(MistakeError, LookupError):
    """A catalog has no usable variant of that name; the message lists those it has, or says what is wrong."""


def names(package: str) -> list[str]:
    """Names of all variants of a catalog package, e.g. ``names("heliomesh.planners")``."""
    return sorted({*_files(package), *(entry.name for entry in _entries(package))})


def nearest(name: str, known: list[str]) -> str:
    """A hint ``; did you mean 'x'?`` or an empty string."""
    begun = [one for one in known if one.startswith(name)] if name else []
    close = begun or difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def find(package: str, name: str) -> Any:
    """The variant ``name`` of a catalog package: a module or a callable, as the contract of the catalog says."""
    known_file = sys.modules.get(f"{package}.{name}") if name.isidentifier() else None
    if known_file is not None:  # no folder is read again: a scenario names several variants
        return known_file
    if name in _files(package):
        return importlib.import_module(f"{package}.{name}")
    outside = offered(package, name)
    if outside is not None:
        return _imported(outside)
    if ":" in name:
        return load(name)
    known = names(package)
    raise UnknownVariantError(f"expected one of {', '.join(known)}, actual value {name!r}{nearest(name, known)}")


def offered(package: str, name: str) -> str | None:
    """The ``module:name`` that an installed package offers under a name; None where none does or the file is ours."""
    found = sorted({entry.value for entry in _entries(package) if entry.name == name})
    if len(found) > 1:
        raise UnknownVariantError(f"expected one package to offer {name!r}, actual offers {', '.join(found)}")
    return found[0] if found and name not in _files(package) else None


def function(variant: Any, name: str) -> Any:
    """A variant's function of that name, or the variant itself where it is the function."""
    return getattr(variant, name, variant)


def load(text: str) -> Any:
    """The object that ``module:name`` means: an attribute or submodule, or with an empty name the module itself.

    All code that a user names by text comes in through here; files of ours and installed entry points do not.
    """
    if not _named_code_allowed.get():
        raise UnknownVariantError(
            f"expected --trust (heliomesh --trust <command>) to run code named in a scenario, actual value {text!r}"
        )
    return _imported(text)


@contextmanager
def named_code(allowed: bool) -> Iterator[None]:
    """Allow or refuse code named as ``module:name`` for a while: a scenario file may come from a stranger."""
    token = _named_code_allowed.set(allowed)
    try:
        yield
    finally:
        _named_code_allowed.reset(token)


_named_code_allowed = ContextVar("named code is allowed", default=True)  # who writes Python trusts it


def spelled(variant: object) -> str:
    """A variant as text that `find` reads back: a name as it is, an object as ``module:name``."""
    if isinstance(variant, str):
        return variant
    if isinstance(variant, ModuleType):
        parent, _, own = variant.__name__.rpartition(".")
        return f"{parent}:{own}" if parent else f"{own}:"
    module, name = getattr(variant, "__module__", None), getattr(variant, "__qualname__", None)
    text = f"{module}:{name}"
    if module is None or name is None or not _is(variant, text):
        raise UnknownVariantError(
            f"expected a function, class or module that Python can import by its name, actual value {variant!r:.80}"
        )
    return text


def _is(variant: object, text: str) -> bool:
    try:
        return _imported(text) is variant
    except UnknownVariantError:
        return False


def _imported(text: str) -> Any:
    """Import ``module``, ``module:`` or ``module:name``; a user's module may raise anything meanwhile."""
    module_name, _, path = text.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in filter(None, path.split(".")):
            found = getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module_name}.{name}")
    except Exception as error:
        raise UnknownVariantError(
            f"expected importable code as module:name, actual value {text!r}: {type(error).__name__}: {error}"
        ) from error
    return found


def _files(package: str) -> list[str]:
    folder = importlib.import_module(package)
    return [module.name for module in pkgutil.iter_modules(folder.__path__)]


def _entries(package: str) -> list[EntryPoint]:
    """Entry points of installed packages for a catalog."""
    return _entries_on(package, tuple(sys.path))


@cache
def _entries_on(package: str, path: tuple[str, ...]) -> list[EntryPoint]:
    """The same for a search path of Python: looking through all packages takes its time."""
    return list(entry_points(group=f"heliomesh.{package.rpartition('.')[2]}"))
