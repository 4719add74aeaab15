"""Find a variant by its file name: every file of a catalog folder is one variant, and nothing is registered."""

import difflib
import importlib
import pkgutil
from types import ModuleType


class UnknownVariantError(LookupError):
    """A catalog has no variant of that name; the message lists those it has."""


def names(package: str) -> list[str]:
    """Names of all variants of a catalog package, e.g. ``names("heliomesh.planners")``."""
    folder = importlib.import_module(package)
    return sorted(module.name for module in pkgutil.iter_modules(folder.__path__))


def nearest(name: str, known: list[str]) -> str:
    """A hint ``; did you mean 'x'?`` or an empty string."""
    begun = [one for one in known if one.startswith(name)] if name else []
    close = begun or difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def find(package: str, name: str) -> ModuleType:
    """Import the variant ``name`` of a catalog package."""
    known = names(package)
    if name not in known:
        raise UnknownVariantError(f"expected one of {', '.join(known)}, actual value {name!r}{nearest(name, known)}")
    return importlib.import_module(f"{package}.{name}")
