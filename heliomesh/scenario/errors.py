"""A user's mistake in a scenario, in one sentence: the field's path, what was expected and what was found."""

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from heliomesh.common import catalog
from heliomesh.common.mistakes import FieldError


class ScenarioError(FieldError, ValueError):
    """A user's mistake in one line: the field's path, what was expected there and what was found."""


refuse = ScenarioError.when

# pydantic's words for a program's types, in the words of a settings file
_EXPECTED = {
    "bool_type": "true or false",
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "text",
    "tuple_type": "a list",
    "too_short": "a list that is not empty",
    "too_long": "a list of {max_length} values",
    "missing": "a value",
}


def explained(errors: list[ErrorDetails], prefix: str, model: type[BaseModel]) -> ScenarioError:
    """Turn pydantic's errors into a sentence on the first wrong field: path, expectation, actual value.

    A key that does not exist comes first, for it may be why another one is missing. A field of several kinds
    has an error for each: those that reach deepest into the value know best what is wrong with it.
    """
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return ScenarioError(joined(prefix, name), one_of(sorted(model.model_fields), "key", name))
    own = [error for error in errors if error["loc"][0] == name]
    deepest = max(own, key=lambda error: len(_indices(error)))
    place = _indices(deepest)
    expected = ", or ".join(_expected(error) for error in own if _indices(error) == place)
    actual = "missing" if deepest["type"] == "missing" else shortened(deepest["input"])
    return ScenarioError(joined(prefix, name, *map(str, place)), f"expected {expected}, actual value {actual}")


def _indices(error: ErrorDetails) -> tuple[int, ...]:
    """Position of a wrong entry within its field; the texts beside it only name a branch of a union."""
    return tuple(part for part in error["loc"] if isinstance(part, int))


def _expected(error: ErrorDetails) -> str:
    kind, message = error["type"], error["msg"].removeprefix("Input should be ")
    if kind.startswith("date_"):
        return "a date such as 2023-06-01"
    if kind.startswith(("greater_than", "less_than")):
        return f"a number {message}"
    return _EXPECTED[kind].format(**error.get("ctx", {})) if kind in _EXPECTED else message


def one_of(known: list[str], what: str, actual: object) -> str:
    """A sentence on a value that is none of those known, with the one that is probably meant."""
    hint = catalog.nearest(str(actual), known)
    listed = f"one of {', '.join(known)}" if known else f"no {what}"
    return f"expected {listed}, actual {what} {shortened(actual)}{hint}"


def joined(*parts: str) -> str:
    """The path of a field."""
    return ".".join(part for part in parts if part)


def shortened(value: object) -> str:
    """A value as a sentence shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
