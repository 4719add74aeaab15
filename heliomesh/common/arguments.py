"""The check at the door of every public function: arguments are of the kinds that its signature states.

`checked` reads the annotations of a function, or of a class's constructor, and refuses what is of another kind before
any work begins: ``problem: expected a Problem, actual value of type Scenario``. A whole number of any type, such as
numpy's, becomes Python's own. An annotation may carry a limit, as
`Count` and `Index` do. Annotations that say nothing a program can check, such as ``object``, let everything in.
"""

import inspect
import math
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from heliomesh.common.mistakes import ArgumentError


@dataclass(frozen=True)
class Limit:
    """What a value must be besides its kind, and how a sentence says so."""

    holds: Callable[[Any], object]
    words: str

    def in_words(self, kind: str) -> str:
        """The kind with this limit."""
        head, comma, rest = kind.partition(",")
        return f"{head} {self.words}{comma}{rest}"


def at_least(least: float) -> Limit:
    """The least that a number may be."""
    return Limit(lambda value: value >= least, f"of at least {least:g}")


NOT_EMPTY = Limit(len, "that is not empty")
Index = Annotated[int, at_least(0)]  # counts from 0: an episode, a seed
Count = Annotated[int, at_least(1)]
Probability = Annotated[
    float, Limit(lambda value: 0 < value < 1, "between 0 and 1")
]  # neither impossible nor certain
_Checked = TypeVar("_Checked", bound=Callable[..., Any])


def checked(function: _Checked) -> _Checked:
    """The same function, or class, with arguments that are checked against its annotations; raises ArgumentError."""
    if isinstance(function, type):
        function.__init__ = checked(function.__init__)  # type: ignore[misc]
        return function
    signature = inspect.signature(function)

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named)  # raises TypeError as Python does
        for name, value, expected in _arguments(bound):
            if not _fits(value, expected):
                says_itself = value is None or isinstance(
                    value, bool | int | float | str | Path | list | tuple | dict
                )
                actual = f"value {value!r:.60}" if says_itself else f"value of type {type(value).__name__}"
                raise ArgumentError(name, _in_words(expected), actual)
            if name in bound.arguments:
                bound.arguments[name] = _plain(value, expected)
        return function(*bound.args, **bound.kwargs)

    return cast(_Checked, call)


def _arguments(bound: inspect.BoundArguments) -> Iterator[tuple[str, object, object]]:
    """Name, value and annotation of all that was given."""
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        if parameter.annotation is parameter.empty:  # such as self
            continue
        keywords = value if parameter.kind is parameter.VAR_KEYWORD else {name: value}
        yield from ((key, one, parameter.annotation) for key, one in keywords.items())


def _fits(value: object, expected: object) -> bool:
    """Whether a value is of the kind that an annotation states; True where the annotation says nothing."""
    origin, parts = get_origin(expected), get_args(expected)
    if expected in (None, types.NoneType):
        return value is None
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is Annotated:
        return _fits(value, parts[0]) and all(limit.holds(value) for limit in _limits(expected))
    kind = origin or expected
    if not isinstance(kind, type) or kind in (object, Any):
        return True
    if kind is int:
        return isinstance(value, Integral) or (isinstance(value, Real) and float(value).is_integer())
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if kind is Mapping:
        key, entry = parts or (object, object)
        return isinstance(value, Mapping) and all(_fits(k, key) and _fits(v, entry) for k, v in value.items())
    if kind in _LISTS:  # several things that can be counted, but no text and no table of names
        if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
            return False
        if kind is tuple and parts and parts[-1] is not Ellipsis:  # one by one
            return len(value) == len(parts) and all(map(_fits, value, parts))
        return not parts or all(_fits(one, parts[0]) for one in value)
    if getattr(kind, "_is_protocol", False):
        members = (name for name in vars(kind) if not name.startswith("_") or name == "__call__")
        return all(hasattr(value, name) for name in members)
    return isinstance(value, kind)


def _limits(annotated: object) -> list[Limit]:
    """What an annotation demands besides the kind; metadata of others are theirs to check."""
    return [part for part in get_args(annotated)[1:] if isinstance(part, Limit)]


_LISTS = (list, tuple, Sequence)


def _plain(value: object, expected: object) -> object:
    """Python's own integer where a whole number is expected: True, 1.0 and numpy's 1 are 1 and have one key."""
    if type(value) is int or not isinstance(value, Real) or not _takes(expected, int) or _takes(expected, float):
        return value
    return math.floor(value) if _fits(value, int) else value


def _takes(expected: object, kind: type) -> bool:
    """Whether an annotation, or a part of a union, is of this kind."""
    if get_origin(expected) in (Union, types.UnionType, Annotated):
        return any(_takes(part, kind) for part in get_args(expected))
    return expected is kind


def _in_words(expected: object) -> str:
    """A kind as a sentence names it."""
    origin, parts = get_origin(expected), get_args(expected)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_in_words(part) for part in parts if part is not types.NoneType))
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin is Annotated:
        return reduce(lambda words, limit: limit.in_words(words), _limits(expected), _in_words(parts[0]))
    kind = origin or expected
    if not isinstance(kind, type):
        return str(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if kind is Mapping:
        return f"a mapping, each key {_in_words(parts[0])}" if parts else "a mapping"
    if kind in _LISTS:
        return f"a list, each entry {_in_words(parts[0])}" if parts else "a list"
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


_WORDS: dict[type, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    object: "anything",
    types.ModuleType: "a module",
    types.SimpleNamespace: "a namespace",
    Callable: "a function",  # type: ignore[dict-item]
}
