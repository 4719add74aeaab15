"""What all parts of a scenario are made of: a frozen section, and the kinds of its fields."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heliomesh.common import catalog
from heliomesh.scenario.errors import ScenarioError, explained, shortened

LEAST_JOULE, MOST_JOULE = 1e-100, 1e100  # sums and ratios of energies must stay numbers
MOST_WATT = 1e30  # so must sums of received powers, in float32 too


class Section(BaseModel):
    """A part of a scenario: immutable, no unknown keys, no NaN, no silent conversion of text to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)
    per_device: ClassVar[tuple[str, ...]] = ()  # fields that take one number or one per device

    def __getstate__(self) -> dict[Any, Any]:
        """With the code that the user vouched for: a process that is handed the section runs it too."""
        return super().__getstate__() | {_VOUCHED: [text for text in self.__dict__.values() if catalog.vouched(text)]}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        catalog.vouch(state.pop(_VOUCHED))
        super().__setstate__(state)


_VOUCHED = "vouched for"
_Section = TypeVar("_Section", bound=Section)
Vector = Annotated[tuple[float, ...], Field(strict=False, min_length=1)]
Matrix = Annotated[tuple[Vector, ...], Field(strict=False, min_length=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]  # what an average over time keeps of its past
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Rounds = Annotated[int, Field(ge=1, le=100_000)]  # of a search, or what is tried in one
Levels = Annotated[int, Field(ge=2, le=4096)]  # of a battery grid
# One number for all devices, or a list with one number per device.
PerDevicePositive = Positive | Annotated[tuple[Positive, ...], Field(strict=False)]
PerDeviceNonNegative = NonNegative | Annotated[tuple[NonNegative, ...], Field(strict=False)]
Share = Annotated[float, Field(ge=0.001, le=1)]  # of energy that gets through; less would drown in rounding
# a load [W] and the share of what is drawn that reaches it
LoadPoint = Annotated[tuple[Positive, Share], Field(strict=False)]
Edge = Annotated[tuple[int, int], Field(strict=False)]
ConverterEfficiency = Share | Annotated[tuple[LoadPoint, ...], Field(strict=False, min_length=1)]


def validated(model: type[_Section], data: object, prefix: str) -> _Section:
    """Check one section; raises ScenarioError with paths below ``prefix``."""
    if not isinstance(data, Mapping):
        raise ScenarioError(prefix, "a table of settings", f"value {shortened(data)}")
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise explained(error.errors(), prefix, model) from None


def per_device(value: float | tuple[float, ...], devices: int) -> list[float]:
    """Spread one number, or keep a list of one number per device."""
    return [value] * devices if isinstance(value, float) else list(value)
