"""Frozen dataclasses of tensors: the same on another machine, of other episodes, or as arrays."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

from torch import Tensor

_Holder = TypeVar("_Holder")


def with_tensors(holder: _Holder, change: Callable[[Tensor], Any]) -> _Holder:
    """A frozen dataclass with its tensors changed, and those of dataclasses and tuples within it."""
    found: Any = holder
    if isinstance(found, Tensor):
        found = change(found)
    elif type(found) is tuple:
        found = tuple(with_tensors(entry, change) for entry in found)
    elif is_dataclass(found):
        kind: Any = type(found)  # sooner made anew than by `replace`
        found = kind(*(with_tensors(getattr(found, field.name), change) for field in fields(found)))
    return cast(_Holder, found)
