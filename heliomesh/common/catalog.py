"""Find a variant by name: a file of ours, an entry point of an installed package, or ``module:name``.

A catalog is a folder of this package, such as `heliomesh.planners`: every file is one variant, and nothing is
registered. An installed package adds variants by entry points of the group ``heliomesh.<folder>``, such as
``heliomesh.harvest``. Code that is merely importable is named ``module:name``.

The gate is `load`: what a file names is imported only if it is of the first two kinds, or if the user trusts it: by
naming the same code in a call of Python, by ``trust=True`` where the file is read, or by ``--trust``.
"""

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType, SimpleNamespace
from typing import Any

from heliomesh.common.mistakes import MistakeError

# what a user may give where a variant is asked for: its name, a function or class, or a module or what looks like one
CodeOrName = str | Callable[..., Any] | ModuleType | SimpleNamespace


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

    All code that a text names comes in through here; files of ours and installed entry points do not.
    """
    check_trusted(text)
    return _imported(text)


def check_trusted(text: str) -> None:
    """Refuse a name that a file gives and the user does not trust; names without a colon are ours or installed."""
    said = _trusting.get()
    if ":" in text and not (text in _vouched if said is None else said):
        how = "trust=True where the file is read" if said is None else "--trust (heliomesh --trust <command>)"
        raise UnknownVariantError(f"expected {how} to run code named in a file, actual value {text!r}")


def vouch(value: object) -> None:
    """Let `load` import the code that texts within a value name: the user gave them, or trusts their file."""
    if _trusting.get() is False:
        return
    if isinstance(value, str) and ":" in value:
        _vouched.add(value)
    elif isinstance(value, Mapping | list | tuple):
        for entry in value.values() if isinstance(value, Mapping) else value:
            vouch(entry)


def vouched(value: object) -> bool:
    """Whether the user named this code, or trusted a file that does."""
    return isinstance(value, str) and value in _vouched


@contextmanager
def trusting(said: bool | None) -> Iterator[None]:
    """For a while let all named code run, or none; None: that which the user vouched for."""
    token = _trusting.set(said)
    try:
        yield
    finally:
        _trusting.reset(token)


@contextmanager
def reading(trust: bool, data: object) -> Iterator[None]:
    """Read what a file held: its code is the user's own only where ``trust`` or the command line says so."""
    with trusting(trust or _trusting.get()):
        if trust or _trusting.get():
            vouch(data)
        yield


_trusting: ContextVar[bool | None] = ContextVar("what the command line or a reader said of named code", default=None)
_vouched: set[str] = set()


def spelled(variant: object) -> str:
    """A variant as text that `find` reads back: a name as it is, an object as ``module:name``."""
    if isinstance(variant, str):
        return variant
    if isinstance(variant, ModuleType):
        parent, _, own = variant.__name__.rpartition(".")
        if parent.partition(".")[0] == "heliomesh":  # a file of ours has a name in its catalog
            return own
        return f"{parent}:{own}" if parent else f"{own}:"
    text = f"{getattr(variant, '__module__', None)}:{getattr(variant, '__qualname__', None)}"
    with suppress(UnknownVariantError):
        if _imported(text) is variant:
            return text
    expected = "expected a function, class or module that Python can import by its name"
    raise UnknownVariantError(f"{expected}, actual value {variant!r:.80}")


def _imported(text: str) -> Any:
    """Import ``module``, ``module:`` or ``module:name``; a user's module may raise anything meanwhile."""
    module_name, _, path = text.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in filter(None, path.split(".")):
            found = getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module_name}.{name}")
    except Exception as error:
        actual = f"actual value {text!r}: {type(error).__name__}: {error}"
        raise UnknownVariantError(f"expected importable code as module:name, {actual}") from error
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
