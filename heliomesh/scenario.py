"""Every input of heliomesh: one frozen, validated scenario, read from and written to TOML.

Sections of one kind only are classes here. A harvest or channel source brings its own settings in its own file
(`physics/harvest/*.py` and `physics/channels/*.py`, class ``Settings``), so that a new source is one new file.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError
from pydantic_core import ErrorDetails

from heliomesh import catalog
from heliomesh.arguments import checked
from heliomesh.mistakes import FieldError
from heliomesh.on_air import Format
from heliomesh.places import PlacesError, read_places

HARVEST_CATALOG = "heliomesh.physics.harvest"
CHANNEL_CATALOG = "heliomesh.physics.channels"
AGGREGATION_CATALOG = "heliomesh.learning.aggregations"
OPTIMISER_CATALOG = "heliomesh.learning.optimisers"
LEAST_JOULE, MOST_JOULE = 1e-100, 1e100  # sums and ratios of energies must stay numbers
MOST_WATT = 1e30  # so must sums of received powers, in float32 too


class ScenarioError(FieldError, ValueError):
    """A user's mistake in one line: the field's path, what was expected there and what was found."""


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
# One number for all devices, or a list with one number per device.
PerDevicePositive = Positive | Annotated[tuple[Positive, ...], Field(strict=False)]
PerDeviceNonNegative = NonNegative | Annotated[tuple[NonNegative, ...], Field(strict=False)]
Share = Annotated[float, Field(ge=0.001, le=1)]  # of energy that gets through; less would drown in rounding
PerDeviceShare = Share | Annotated[tuple[Share, ...], Field(strict=False)]
PerDeviceDecay = Decay | Annotated[tuple[Decay, ...], Field(strict=False)]
# a load [W] and the share of what is drawn that reaches it
LoadPoint = Annotated[tuple[Positive, Share], Field(strict=False)]
Edge = Annotated[tuple[int, int], Field(strict=False)]
Metre = Annotated[float, Field(ge=-1e9, le=1e9)]
Place = Annotated[tuple[Metre, Metre], Field(strict=False)]
Samples = Annotated[tuple[int, ...], Field(strict=False)]

# first slot, how many slots, and the factor on harvests in them
CloudyEvent = Annotated[tuple[Annotated[int, Field(ge=0)], Count, Fraction], Field(strict=False)]


class Network(Section):
    """Who can hear whom, and the weights of averaging."""

    topology: Literal[
        "ring", "grid", "geometric", "regular", "star", "complete", "erdos-renyi", "places", "edges"
    ] = Field("ring", description="kind of graph; 'edges' lists its links, 'places' links positions")
    devices: Count = Field(10, description="number of devices; positions imply it")
    edges: Annotated[tuple[Edge, ...], Field(strict=False)] | None = Field(
        None, description="undirected links, for topology = 'edges' and for places with links = 'list'"
    )
    positions_metre: Annotated[tuple[Place, ...], Field(strict=False, min_length=1)] | None = Field(
        None, description="[x, y] of every device [m]; they imply topology = 'places'"
    )
    places_file: str | None = Field(
        None,
        description="CSV, GeoJSON or GraphML file of places; what it holds becomes positions_metre, names and edges",
    )
    names: Annotated[tuple[str, ...], Field(strict=False)] | None = Field(
        None, description="places: what devices are called where they are shown; decides nothing"
    )
    links: Literal["radius", "budget", "list"] | None = Field(
        None,
        description="places: pairs within link_metre, pairs that a link budget allows, or edges; "
        "default: edges where there are some, else radius",
    )
    budget_error: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="links = 'budget': largest packet error rate of a link, at the largest power, the mean channel "
        "gain and without interference; default: 0.1",
    )
    rows: Annotated[int, Field(ge=1)] | None = Field(None, description="grid only; default: nearest to a square")
    degree: Annotated[int, Field(ge=1)] = Field(4, description="degree of a random regular graph")
    mean_degree: Annotated[float, Field(ge=1e-9)] = Field(
        4.0, description="target mean degree of a geometric graph; expected degree of an Erdős–Rényi graph"
    )
    max_degree: Annotated[int, Field(ge=1)] | None = Field(
        None, description="refuse geometric and Erdős–Rényi draws above it"
    )
    link_metre: Annotated[float, Field(gt=0, le=1e9)] = Field(
        150.0,
        description="distance of linked devices [m]; the radius of geometric graphs and places, "
        "whose links may be shorter",
    )
    placement: Literal["uniform", "jittered"] = Field(
        "uniform", description="geometric: anywhere in a square, or one device anywhere in each cell of a lattice"
    )
    mixing: Literal["metropolis", "lazy-metropolis"] = Field(
        "metropolis",
        description="weights of averaging: a_ij = 1 / (1 + max(d_i, d_j)) of linked devices with degrees d; "
        "lazy: half of that",
    )
    allow_disconnected: bool = Field(False, description="accept a graph of several components")
    keep_gap: Fraction | None = Field(
        None,
        description="give the weakest links no weight while the graph stays connected and the mixing matrix keeps "
        "this share of its spectral gap; default: all links have weight",
    )


class HarvestSettings(Section):
    """What the settings of every harvest source have; a source without settings of its own has only these."""

    source: str = Field(description="where energy comes from: a name of `physics/harvest`, or module:name")
    sky: Literal["independent", "mixed", "common"] = Field(
        "independent",
        description="weather and harvest of every device on its own, one weather for all, or one weather and harvest",
    )
    forecast: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="devices see a forecast of the next slot's weather that is right with this probability"
    )
    cloudy: Annotated[tuple[CloudyEvent, ...], Field(strict=False, min_length=1)] | None = Field(
        None, description="clouds over all devices: [first slot, slots, factor on every harvest] of each event"
    )
    cloudy_known: bool | None = Field(None, description="whether plans know of these clouds; default: false")


class ChannelSettings(Section):
    """What the settings of every channel source have; a field ``gain`` of a source scales each receiver's gains."""

    source: str = Field(description="how channels fade: a name of `physics/channels`, or module:name")
    state: Literal["receiver", "link", "reciprocal"] = Field(
        "receiver", description="what has a fading state of its own: each receiver, directed link or undirected link"
    )


class Link(Section):
    """From powers and gains to packet errors."""

    per_device = ("noise_watt",)

    error: Literal["waterfall", "table"] = Field(
        "waterfall", description="error rate by the paper's equation with φ, or by a table of the SINR"
    )
    waterfall: Positive = Field(1.0, description="φ of the error rate")
    table: str | None = Field(
        None, description="CSV file with rows of SINR [dB] and packet error rate, for error = 'table'"
    )
    noise_watt: PerDevicePositive = Field(
        0.01, description="noise power at each receiver [W]; log-distance loss needs far less, such as 2e-14"
    )
    half_duplex: bool = Field(False, description="a sending device receives nothing")
    path_loss: Literal["none", "log-distance"] = Field("none", description="'none': path gain 1")
    loss_at_km_db: Annotated[float, Field(ge=-1000, le=1000)] = Field(148.0, description="loss at one kilometre [dB]")
    loss_per_decade_db: Annotated[float, Field(ge=0, le=1000)] = Field(
        40.0, description="extra loss per tenfold distance [dB]"
    )


class Energy(Section):
    """What actions cost and what a battery holds."""

    per_device = (
        *("compute_joule", "compute_watt", "compute_second", "flop_per_second", "cpu_hz", "cycles_per_sample"),
        *("capacity_joule", "initial", "charge_efficiency", "leak_per_day"),
        *("receive_watt", "listen_second", "sleep_watt", "wake_joule"),
    )

    radio: str | None = Field(
        None,
        description="a radio of `heliomesh scenario radios`, or a .toml file like those; its numbers replace the "
        "name and stand in every field that is not set",
    )
    board: str | None = Field(None, description="a computer of `heliomesh scenario boards`, likewise")
    powers_watt: Annotated[Vector, Field(max_length=1000)] = Field(
        (0.0, 0.1, 0.4), description="radiated powers [W]: 0, then rising"
    )
    consumed_watt: Annotated[Vector, Field(max_length=1000)] | None = Field(
        None, description="power drawn while sending at each of powers_watt [W]; default: powers_watt"
    )
    transmit_second: Positive | Literal["bits"] = Field(
        2.0, description="time of sending an update [s], or 'bits': the update's bits over bit_per_second"
    )
    bit_per_second: Positive | None = Field(None, description="rate of sending updates, for transmit_second = 'bits'")
    packet_overhead: NonNegative = Field(
        0.0, description="bits of headers and gaps per bit of an update, for transmit_second = 'bits'"
    )
    duty_cycle: Share | None = Field(
        None, description="largest share of a slot on air that the band's rules allow; default: no limit"
    )
    slot_second: Positive = Field(4.0, description="length of a slot [s]")
    compute_joule: PerDeviceNonNegative | None = Field(
        None, description="energy of a slot's training [J]; default: compute_watt · compute_second, or κ K I² c |ξ|"
    )
    compute_watt: PerDevicePositive | None = Field(
        None, description="power drawn while training [W], with compute_second"
    )
    compute_second: PerDevicePositive | Literal["flop"] | None = Field(
        None, description="time of a slot's training [s], or 'flop': its operations over flop_per_second"
    )
    flop_per_second: PerDevicePositive | None = Field(
        None, description="sustained floating-point operations per second, for compute_second = 'flop'"
    )
    capacitance: Positive = Field(1e-28, description="κ, effective switched capacitance")
    cpu_hz: PerDevicePositive = Field(1.5e9, description="I, processor frequency [Hz]")
    cycles_per_sample: PerDevicePositive = Field(2e7, description="c, processor cycles per training sample")
    actions: Literal["coupled", "separate"] = Field(
        "coupled", description="whoever trains sends and the reverse, as in the paper, or each on its own as well"
    )
    train_only: bool = Field(False, description="coupled actions: adds 'train, don't send'")
    capacity_joule: PerDevicePositive = Field(4.0, description="most energy that a battery holds [J]")
    battery_levels: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="points of every planner's battery grid; default: each planner chooses its own"
    )
    initial: Literal["uniform-grid", "uniform"] | PerDeviceNonNegative = Field(
        "uniform-grid",
        description="first stored energy: uniform, uniform on battery_levels points (else 9), or joules per device",
    )
    storage: Literal["ideal", "li-ion", "supercapacitor"] = Field(
        "ideal", description="published losses of a storage, or none; the next three fields replace its numbers"
    )
    charge_efficiency: PerDeviceShare | None = Field(None, description="share of the harvest that is stored")
    leak_per_day: PerDeviceDecay | None = Field(None, description="share of the stored energy that a day takes")
    converter_efficiency: Share | Annotated[tuple[LoadPoint, ...], Field(strict=False, min_length=1)] | None = Field(
        None, description="share of the energy drawn that reaches the load: one number, or [load in W, share] points"
    )
    receive_watt: PerDeviceNonNegative = Field(0.0, description="power of the receiver while it listens [W]")
    listen_second: PerDeviceNonNegative = Field(0.0, description="time in every slot that the receiver is on [s]")
    sleep_watt: PerDeviceNonNegative = Field(0.0, description="power in the rest of the slot [W]")
    wake_joule: PerDeviceNonNegative = Field(
        0.0, description="energy to wake the radio, once in a slot with listening or sending [J]"
    )
    control_bit_per_second: Annotated[float, Field(ge=1e-9)] = Field(
        250e3, description="rate of planning and coordination messages"
    )
    control_watt: Annotated[float, Field(gt=0, le=MOST_WATT)] = Field(
        0.1, description="power while sending such messages [W]"
    )

    @property
    def start_points(self) -> int:
        """Points of the grid on which batteries start with ``initial = "uniform-grid"``."""
        return _START_POINTS if self.battery_levels is None else self.battery_levels


_START_POINTS = 9


class Cost(Section):
    """What an update that does not arrive costs, and when which models are wanted."""

    idle_penalty: Fraction = Field(1.0, description="share of its own weight a_jj that an idle device pays")
    # its one value stands in stored scenarios and in their hashes
    objective: Literal["update-loss"] = Field("update-loss", description="share of updates lost")
    unlikeness: NonNegative | None = Field(
        None,
        description="what uneven training costs, in slots of training, for 200 slots; default: by the partition",
    )
    deadline: Literal["end", "always"] | Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = Field(
        "end", description="when models must be good: at the end, all along, or after so many slots each"
    )


class Learning(Section):
    """What is trained; K and the batch size also set the compute energy."""

    dataset: str = Field("digits", description="a name of `learning/datasets`, or module:function")
    path: str | None = Field(None, description="of the user's own data, for datasets that ask for one")
    model: str = Field("auto", description="a name of `learning/models`, module:factory, or auto: by inputs' shape")
    buffers: Literal["refuse", "drop"] = Field(
        "refuse", description="what becomes of models with running statistics; 'drop': BatchNorm goes on without"
    )
    partition: Literal["iid", "dirichlet", "shards", "indices"] = Field(
        "iid", description="how training samples are split over devices"
    )
    alpha: Positive = Field(0.8, description="dirichlet: concentration; the smaller, the more devices' labels differ")
    min_samples: Count = Field(10, description="dirichlet: fewest samples of a device")
    shards_per_device: Count = Field(2, description="shards: how many a device has, of samples sorted by label")
    indices: Annotated[tuple[Samples, ...], Field(strict=False)] | None = Field(
        None, description="indices: the training samples of each device"
    )
    aggregation: str = Field(
        "reassigned",
        description="who takes the weight of packets that are lost: those that arrive (reassigned), they and oneself "
        "(renormalized), oneself (model); or the paper's sum of updates (update), or a rule of the catalog",
    )
    quasi_global: Decay | None = Field(None, description="β of quasi-global momentum; default: without")
    allow_divergence: bool = Field(
        False, description="accept 'update' although the mixing matrix has a negative eigenvalue"
    )
    local_steps: Count = Field(5, description="K, steps of SGD in a slot of training")
    batch: Count = Field(32, description="|ξ|, samples of a step")
    update_bits: Annotated[int, Field(ge=1, le=2**53)] | None = Field(
        None, description="bits of one update on air; default: counted from the model"
    )
    sample_flop: Positive | None = Field(
        None, description="floating-point operations of training on one sample; default: counted from the model"
    )
    learning_rate: Positive = Field(0.01, description="η of the first slot")
    schedule: Literal["constant", "cosine", "inverse", "step"] | None = Field(
        None, description="how the learning rate falls; default: constant"
    )
    final_rate: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="share of the first learning rate that is left at the end; default: 0.1"
    )
    schedule_slots: Count | None = Field(None, description="slots over which the rate falls; default: all")
    optimizer: str | None = Field(
        None, description="default or sgd: plain SGD; else one of the catalog, whose state lives for a slot"
    )
    momentum: Decay | None = Field(None, description="of optimizers that take it, adam's β1; default: theirs, 0.9")
    second_momentum: Decay | None = Field(None, description="adam's β2; default: 0.999")
    on_air: Format = Field(
        "float32", description="in which models travel: float32, float16, int8, or top-k with error feedback"
    )
    top_k_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="top-k: share of a model's entries that one packet carries"
    )


_FIXED: dict[str, type[Section]] = {
    "network": Network,
    "link": Link,
    "energy": Energy,
    "cost": Cost,
    "learning": Learning,
}
_SOURCES: dict[str, tuple[str, type[Section], str]] = {  # catalog, what all settings have, default
    "channel": (CHANNEL_CATALOG, ChannelSettings, "rayleigh"),
    "harvest": (HARVEST_CATALOG, HarvestSettings, "solar"),
}


def _source_settings(section: str, source: str) -> type[Section]:
    """The settings' class of a channel or harvest source."""
    package, common, _ = _SOURCES[section]
    settings: type[Section] = getattr(variant(package, source, f"{section}.source"), "Settings", common)
    return settings


def variant(package: str, name: str, field: str) -> Any:
    """A variant of a catalog by the name that a user gave in ``field``; raises ScenarioError."""
    try:
        return catalog.find(package, name)
    except catalog.UnknownVariantError as error:
        raise ScenarioError(field, str(error)) from None


def _section_class(name: str, data: Mapping[str, Any]) -> type[Section]:
    if name in _FIXED:
        return _FIXED[name]
    package, _, default = _SOURCES[name]
    source = data.get("source", default)
    if not isinstance(source, str):
        raise ScenarioError(f"{name}.source", _one_of(catalog.names(package), "value", source))
    return _source_settings(name, source)


def _as_text(field: str, value: object) -> object:
    """A Python function, class or module as the text ``module:name`` that means it; other values as they are."""
    if not (callable(value) or isinstance(value, ModuleType)):
        return value
    try:
        text = catalog.spelled(value)
    except catalog.UnknownVariantError as error:
        raise ScenarioError(field, str(error)) from None
    catalog.vouch(text)  # no file holds an object
    return text


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


def _explain(errors: list[ErrorDetails], prefix: str, model: type[BaseModel]) -> ScenarioError:
    """Turn pydantic's errors into a sentence on the first wrong field: path, expectation, actual value.

    A key that does not exist comes first, for it may be why another one is missing. A field of several kinds
    has an error for each: those that reach deepest into the value know best what is wrong with it.
    """
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        in_our_unit = _in_our_unit(name, model)
        wanted = f"expected {in_our_unit}, actual key {_short(name)}" if in_our_unit else None
        return ScenarioError(_joined(prefix, name), wanted or _one_of(sorted(model.model_fields), "key", name))
    own = [error for error in errors if error["loc"][0] == name]
    deepest = max(own, key=lambda error: len(_indices(error)))
    place = _indices(deepest)
    expected = ", or ".join(_expected(error) for error in own if _indices(error) == place)
    actual = "missing" if deepest["type"] == "missing" else _short(deepest["input"])
    return ScenarioError(_joined(prefix, name, *map(str, place)), f"expected {expected}, actual value {actual}")


# units that people write in place of ours: ours, and the way there
_CONVERSIONS = {
    "mah": ("joule", "mAh × volt × 3.6"),
    "ah": ("joule", "Ah × volt × 3600"),
    "wh": ("joule", "Wh × 3600"),
    "mwh": ("joule", "mWh × 3.6"),
    "mj": ("joule", "mJ / 1000"),
    "mw": ("watt", "mW / 1000"),
    "dbm": ("watt", "10^(dBm / 10) / 1000"),
    "m2": ("cm2", "m² × 10,000"),
    "mm2": ("cm2", "mm² / 100"),
    "ms": ("second", "ms / 1000"),
    "minute": ("second", "minutes × 60"),
    "hour": ("second", "hours × 3600"),
    "day": ("second", "days × 86,400"),
    "mhz": ("hz", "MHz × 1,000,000"),
    "km": ("metre", "km × 1000"),
}


def _in_our_unit(name: str, model: type[BaseModel]) -> str | None:
    """The field that a key in another unit means, and how to convert; None for other keys."""
    quantity, _, unit = name.lower().rpartition("_")
    ours, conversion = _CONVERSIONS.get(unit, ("", ""))
    field = f"{quantity}_{ours}"
    return f"{field} = {conversion}" if field in model.model_fields else None


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


def _one_of(known: list[str], what: str, actual: object) -> str:
    hint = catalog.nearest(str(actual), known)
    listed = f"one of {', '.join(known)}" if known else f"no {what}"
    return f"expected {listed}, actual {what} {_short(actual)}{hint}"


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def validated(model: type[_Section], data: object, prefix: str) -> _Section:
    """Check one section; raises ScenarioError with paths below ``prefix``."""
    if not isinstance(data, Mapping):
        raise ScenarioError(prefix, f"expected a table of settings, actual value {_short(data)}")
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise _explain(error.errors(), prefix, model) from None


class Scenario(Section):
    """Everything that determines a result, bar the choice of planner."""

    name: str = Field("unnamed", description="shown in tables and pages; decides nothing")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="draws random graphs and a clear sky's clouds, and serves planners; episodes have their own"
    )
    slots: Count = Field(200, description="length of an episode")
    network: Network = Network()
    channel: SerializeAsAny[ChannelSettings]
    link: Link = Link()
    energy: Energy = Energy()
    harvest: SerializeAsAny[Section]
    cost: Cost = Cost()
    learning: Learning = Learning()

    def __init__(self, **fields: Any) -> None:
        """Check the fields one by one; `parse` also checks them together. Raises ScenarioError."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _explain(error.errors(), "", type(self)) from None

    @classmethod
    @checked
    def parse(cls, data: Mapping[str, Any], *, trust: bool = False) -> Self:
        """Validate a nested mapping (as read from TOML) and return the scenario; raises ScenarioError.

        Code that it names as ``module:name`` runs only with ``trust``.
        """
        with catalog.reading(trust, data):
            return cls._validated(data)

    @classmethod
    def _validated(cls, data: Mapping[str, Any]) -> Self:
        data = _parts().filled(data)
        plain = {key: value for key, value in data.items() if key in ("name", "seed", "slots")}
        sections = ("network", "channel", "link", "energy", "harvest", "cost", "learning")
        for key in data:
            if key not in plain and key not in sections:
                raise ScenarioError(key, _one_of(["name", "seed", "slots", *sections], "key", key))
        parts: dict[str, Section] = {}
        for name in sections:
            raw = data.get(name, {})
            if isinstance(raw, Mapping):
                raw = {key: _as_text(f"{name}.{key}", value) for key, value in raw.items()}
                raw = _placed(raw) if name == "network" else raw
            model = _section_class(name, raw if isinstance(raw, Mapping) else {})
            parts[name] = validated(model, raw, name)
        scenario = cls(**plain, **parts)
        _check_together(scenario)
        return scenario

    @classmethod
    @checked
    def load(cls, name_or_path: str | Path, *, trust: bool = False) -> Self:
        """Read a shipped scenario by name (``ring10``) or any ``.toml`` file by path.

        Code that the file names as ``module:name`` runs only with ``trust``.
        """
        text, name, folder = _read(name_or_path)
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # numbers and nesting may exceed what Python reads
            raise ScenarioError("scenario", f"expected TOML, actual file {str(name_or_path)!r}: {error}") from None
        _find_files(data, folder)
        return cls.parse({"name": name, **data}, trust=trust)

    @checked
    def override(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with dotted paths replaced: ``{"network.devices": 20}``.

        Where a name is expected, a Python function, class or module may stand: ``{"learning.model": my_factory}``.
        A new source drops the settings of the old one, so sources are set before all else. A radio or board drops
        the numbers that it brings. New places drop the graph.
        """
        data = self.as_dict()
        _parts().forget(data, changes)
        if any(changes.get(f"network.{field}") is not None for field in ("positions_metre", "places_file")):
            data["network"] = {key: value for key, value in data["network"].items() if key not in _OF_GRAPH}
        catalog.vouch(changes)  # who calls names the code
        for path in sorted(changes, key=lambda path: not path.endswith(".source")):
            _set_path(data, path, _as_text(path, changes[path]))
        return type(self)._validated(data)

    @checked
    def first_slots(self, slots: int) -> Self:
        """The scenario of its first slots, with the clouds that they have."""
        changes: dict[str, Any] = {"slots": slots}
        if (cloudy := getattr(self.harvest, "cloudy", None)) is not None:
            within = [(first, min(count, slots - first), factor) for first, count, factor in cloudy if first < slots]
            changes |= {"harvest.cloudy": within or None}
            if not within:
                changes |= {"harvest.cloudy_known": None}
        return self.override(changes)

    def as_dict(self) -> dict[str, Any]:
        """Nested plain data without unset optional values; `parse` reads it back to an equal scenario."""
        return self.model_dump(mode="json", exclude_none=True)

    def chosen(self) -> dict[str, Any]:
        """`as_dict` without what equals its default, sources named all the same; `parse` reads it back too."""
        data = self._collapsed().model_dump(mode="json", exclude_defaults=True)
        sources = self.model_dump(mode="json", include={name: {"source"} for name in _SOURCES})
        named = {name: source | data.get(name, {}) for name, source in sources.items()}
        return {name: part for name, part in (data | named).items() if part != {}}

    def _collapsed(self) -> Self:
        """The same scenario with one number in place of a list in which all devices have it."""
        changed = {}
        for name in _PER_DEVICE:
            section: Section = getattr(self, name)
            values = {field: getattr(section, field) for field in section.per_device}
            equal = {field: one[0] for field, one in values.items() if isinstance(one, tuple) and len(set(one)) == 1}
            changed[name] = section.model_copy(update=equal)
        return self.model_copy(update=changed)

    def to_toml(self) -> str:
        """The scenario as TOML text."""
        return tomli_w.dumps(self.as_dict())

    @property
    def content_hash(self) -> str:
        """Hexadecimal sha256 of what determines a result: all values but names, and files by content."""
        data = self._collapsed().as_dict()
        del data["name"]
        data["network"].pop("names", None)
        for section, field in FILE_FIELDS:
            if field in data[section]:
                with suppress(OSError, ValueError):  # a file that cannot be read counts by its name
                    data[section][field] = hashlib.sha256(Path(data[section][field]).read_bytes()).hexdigest()
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """JSON schema of the TOML file, for editors; lists every channel and harvest source of the catalogs."""
        schema = cls.model_json_schema()
        del schema["required"]  # `parse` has a default for every section
        for section, (package, _, _) in _SOURCES.items():
            sources = {}
            for name in catalog.names(package):
                source = _source_settings(section, name).model_json_schema()
                schema["$defs"].update(source.pop("$defs", {}))
                sources[f"{section.capitalize()}_{name}"] = source
            schema["$defs"].update(sources)
            schema["properties"][section] = {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in sources]}
        return schema


def sections() -> dict[str, type[Section]]:
    """The settings of every table of a scenario file; a table with sources has one entry for each.

    Keys are headings: ``network``, or ``harvest, source = "solar"``.
    """
    of_sources = {
        f'{section}, source = "{name}"': _source_settings(section, name)
        for section, (package, _, _) in _SOURCES.items()
        for name in catalog.names(package)
    }
    return _FIXED | of_sources


def shipped() -> list[str]:
    """Names of the scenarios that come with the package."""
    folder = files("heliomesh") / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def per_device(value: float | tuple[float, ...], devices: int) -> list[float]:
    """Spread one number, or keep a list of one number per device."""
    return [value] * devices if isinstance(value, float) else list(value)


def parse_override(text: str, flag: str) -> tuple[str, Any]:
    """Split ``path=value`` given to a flag of the command line; the value is read as TOML, else taken as a string."""
    path, sign, raw = text.partition("=")
    if not sign or not all(part.strip() for part in path.split(".")):
        raise ScenarioError(flag, f"expected path=value, actual value {text!r}")
    try:
        return path.strip(), tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        return path.strip(), raw.strip()


def read_text(field: str, path: str | Path) -> str:
    """Text of a file the user named in ``field``; raises ScenarioError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # some editors mark UTF-8 by a first character
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScenarioError(field, f"expected a readable text file, actual file {str(path)!r}: {reason}") from None


def _read(name_or_path: str | Path) -> tuple[str, str, Path]:
    """Text, default name and folder of a scenario."""
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.is_file():
        name = path.stem.encode("utf-8", "backslashreplace").decode("utf-8")  # a file's name may be any bytes
        return read_text("scenario", path), name, path.resolve().parent
    known = shipped()
    if str(name_or_path) not in known:
        hint = catalog.nearest(str(name_or_path), known)
        raise ScenarioError(
            "scenario",
            f"expected a .toml file or one of {', '.join(known)}, actual value {str(name_or_path)!r}{hint}",
        )
    folder = files("heliomesh") / "scenarios"
    text = (folder / f"{name_or_path}.toml").read_text(encoding="utf-8")
    return text, str(name_or_path), Path(str(folder))


_PER_DEVICE = ("channel", "link", "energy", "harvest")  # sections that may have a number for each device
FILE_FIELDS = (("harvest", "file"), ("link", "table"))  # fields that name a file, which counts by its content
_PARTS = ("radio", "board")


def _find_files(data: dict[str, Any], folder: Path) -> None:
    """Let files of a scenario's file be relative to its folder, not to the shell's."""
    own_parts = [("energy", kind) for kind in _PARTS]
    for section, field in (*FILE_FIELDS, ("network", "places_file"), *own_parts):
        table = data.get(section)
        name = table.get(field) if isinstance(table, dict) else None
        if isinstance(name, str) and (field not in _PARTS or name.endswith(".toml")):
            data[section][field] = str(folder / name)


def _parts() -> Any:
    """What knows radios and boards; like a source's file it is found by name, for it stands above this one."""
    return catalog.find("heliomesh.physics", "parts")


def _set_path(data: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for depth, key in enumerate(parents):
        inner = data.setdefault(key, {})
        if not isinstance(inner, dict):
            table = ".".join(parents[: depth + 1])
            raise ScenarioError(path, f"expected a table of settings at {table!r}, actual value {_short(inner)}")
        data = inner
    if last == "source" and data.get("source") != value:
        data.clear()  # another source has other settings
    data[last] = value


def _check_together(scenario: Scenario) -> None:
    """Checks that need more than one field."""
    network = scenario.network
    for section_name in _PER_DEVICE:
        section = getattr(scenario, section_name)
        for field in section.per_device:
            value = getattr(section, field)
            if isinstance(value, (tuple, list)) and len(value) != network.devices:
                raise ScenarioError(
                    f"{section_name}.{field}",
                    f"expected one number or a list of {network.devices} (network.devices), "
                    f"actual number of values {len(value)}",
                )
    _check_energy(scenario.energy)
    _check_link(scenario.link)
    _check_clouds(scenario)
    _check_name("learning.aggregation", scenario.learning.aggregation, BUILT_IN_RULES, AGGREGATION_CATALOG)
    _check_name("learning.optimizer", scenario.learning.optimizer or "sgd", ("sgd",), OPTIMISER_CATALOG)
    _check_momentum(scenario.learning)
    _check_network(network)


_OF_GRAPH = ("topology", "devices", "edges", "positions_metre", "names", "links")  # what new places replace


def _placed(network: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a network with the content of its file of places, and with what positions imply."""
    given = dict(network)
    if isinstance(given.get("places_file"), str):
        given = _with_file(given)
    positions = given.get("positions_metre")
    if isinstance(positions, list | tuple) and positions:
        return {"topology": "places", "devices": len(positions), **given}
    return given


def _with_file(network: dict[str, Any]) -> dict[str, Any]:
    """The settings with what the file of places holds in place of its name."""
    field, file = "network.places_file", network.pop("places_file")
    try:
        read = read_places(read_text(field, file), Path(file).suffix)
    except PlacesError as error:
        raise ScenarioError(field, str(error)) from None
    found: dict[str, Any] = {"positions_metre": read.positions_metre}
    if read.names is not None:
        found["names"] = read.names
    if read.links is not None and network.get("links") in (None, "list"):
        found["edges"] = read.links
    for name in found:
        if network.get(name) is not None:
            raise ScenarioError(
                f"network.{name}", f"expected a value here or in {field}, not in both, actual number 2"
            )
    return network | found


def _check_network(network: Network) -> None:
    """Settings that go with some graphs only, and with each other."""
    kind, positions = network.topology, network.positions_metre
    for field in ("positions_metre", "names", "links"):
        if kind != "places" and getattr(network, field) is not None:
            raise ScenarioError(
                f"network.{field}", f"expected a value with topology 'places' only, actual topology {kind!r}"
            )
    if kind == "places":
        _check_places(network)
    elif kind == "edges" and network.edges is None:
        raise ScenarioError("network.edges", "expected a list of pairs for topology 'edges', actual value missing")
    elif kind != "edges" and network.edges is not None:
        raise ScenarioError(
            "network.edges", f"expected a value with topology 'edges' or 'places' only, actual topology {kind!r}"
        )
    if positions is not None and len(positions) != network.devices:
        raise ScenarioError(
            "network.devices", f"expected {len(positions)}, one per place, actual value {network.devices}"
        )


def _check_places(network: Network) -> None:
    positions, names, edges = network.positions_metre, network.names, network.edges
    if positions is None:
        raise ScenarioError(
            "network.positions_metre",
            "expected [x, y] of every device, or network.places_file, actual value missing",
        )
    first: dict[tuple[float, float], int] = {}
    for device, place in enumerate(positions):
        if first.setdefault(place, device) != device:
            raise ScenarioError(
                f"network.positions_metre.{device}",
                f"expected a place of its own, actual value {list(place)}, where device {first[place]} stands",
            )
    if names is not None and len(names) != len(positions):
        raise ScenarioError(
            "network.names", f"expected {len(positions)} names, one per device, actual number of names {len(names)}"
        )
    if network.links == "list" and edges is None:
        raise ScenarioError("network.edges", "expected a list of pairs for links = 'list', actual value missing")
    if network.links in ("radius", "budget") and edges is not None:
        raise ScenarioError(
            "network.edges", f"expected a value with network.links = 'list' only, actual links {network.links!r}"
        )


def _check_momentum(learning: Learning) -> None:
    """Refuse momentum for plain SGD, which has none."""
    for name in ("momentum", "second_momentum"):
        value = getattr(learning, name)
        if value is not None and learning.optimizer in (None, "sgd"):
            raise ScenarioError(
                f"learning.{name}",
                f"expected a value with learning.optimizer only, since plain SGD has none, actual value {value:g}",
            )


BUILT_IN_RULES = ("model", "update", "renormalized", "reassigned")


def _check_name(field: str, name: str, built_in: tuple[str, ...], package: str) -> None:
    """Refuse an unknown name; code that ``module:name`` means is looked at when it is used."""
    if name not in built_in and ":" not in name:
        known = sorted((*built_in, *catalog.names(package)))
        if name not in known:
            raise ScenarioError(field, _one_of(known, "value", name))


def _check_energy(energy: Energy) -> None:
    _check_powers("energy.powers_watt", energy.powers_watt)
    _check_consumed(energy)
    smallest, largest = (extreme(per_device(energy.capacity_joule, 1)) for extreme in (min, max))
    if largest > MOST_JOULE:
        raise ScenarioError("energy.capacity_joule", f"expected at most {MOST_JOULE:g}, actual value {largest:g}")
    if smallest < LEAST_JOULE:
        raise ScenarioError("energy.capacity_joule", f"expected at least {LEAST_JOULE:g}, actual value {smallest:g}")
    _check_sending(energy)
    _check_computing(energy)
    if not isinstance(energy.initial, str):
        _check_initial(energy.initial, energy.capacity_joule)


def _check_powers(field: str, powers: tuple[float, ...]) -> None:
    if powers[0] != 0 or any(low >= high for low, high in pairwise(powers)):
        raise ScenarioError(field, f"expected 0 (idle) and then rising powers, actual value {_short(list(powers))}")


def _check_consumed(energy: Energy) -> None:
    """Refuse consumptions that are not one per power, or below what is radiated."""
    drawn, radiated = energy.consumed_watt, energy.powers_watt
    if drawn is None:
        return
    if len(drawn) != len(radiated):
        raise ScenarioError(
            "energy.consumed_watt",
            f"expected one value for each of the {len(radiated)} in energy.powers_watt, "
            f"actual number of values {len(drawn)}",
        )
    _check_powers("energy.consumed_watt", drawn)
    for index, (watt, sent) in enumerate(zip(drawn, radiated, strict=True)):
        if watt < sent:
            raise ScenarioError(
                f"energy.consumed_watt.{index}",
                f"expected at least the {sent:g} W that are radiated, actual value {watt:g}",
            )


def _check_sending(energy: Energy) -> None:
    if energy.transmit_second == "bits":
        if energy.bit_per_second is None:
            raise ScenarioError(
                "energy.bit_per_second", "expected a rate for transmit_second 'bits', actual value missing"
            )
    elif energy.transmit_second > energy.slot_second:
        raise ScenarioError(
            "energy.transmit_second",
            f"expected at most energy.slot_second = {energy.slot_second:g}, actual value {energy.transmit_second:g}",
        )
    for second in per_device(energy.listen_second, 1):
        if second > energy.slot_second:
            raise ScenarioError(
                "energy.listen_second",
                f"expected at most energy.slot_second = {energy.slot_second:g}, actual value {second:g}",
            )
    _check_converter(energy.converter_efficiency)


def _check_computing(energy: Energy) -> None:
    """Refuse half of a product, and energies given twice."""
    watt, second = energy.compute_watt, energy.compute_second
    if (watt is None) != (second is None):
        missing, given = ("watt", "second") if watt is None else ("second", "watt")
        raise ScenarioError(
            f"energy.compute_{missing}", f"expected a value beside energy.compute_{given}, actual value missing"
        )
    if watt is not None and energy.compute_joule is not None:
        raise ScenarioError(
            "energy.compute_joule",
            f"expected no value beside energy.compute_watt, actual value {_short(energy.compute_joule)}",
        )
    if second == "flop" and energy.flop_per_second is None:
        raise ScenarioError(
            "energy.flop_per_second", "expected a rate for compute_second 'flop', actual value missing"
        )


def _check_link(link: Link) -> None:
    if (link.table is None) == (link.error == "table"):
        needed = "a CSV file for error 'table'" if link.error == "table" else "no value but with error 'table'"
        actual = "missing" if link.table is None else _short(link.table)
        raise ScenarioError("link.table", f"expected {needed}, actual value {actual}")


def _check_converter(efficiency: float | tuple[tuple[float, float], ...] | None) -> None:
    """Refuse a table in which a larger load is not listed later, or draws less."""
    if not isinstance(efficiency, tuple):
        return
    for (load, share), (next_load, next_share) in pairwise(efficiency):
        if not (load < next_load and load / share < next_load / next_share):
            raise ScenarioError(
                "energy.converter_efficiency",
                f"expected rising loads that draw more and more, actual [{load:g}, {share:g}] before "
                f"[{next_load:g}, {next_share:g}]",
            )


def _check_clouds(scenario: Scenario) -> None:
    cloudy = getattr(scenario.harvest, "cloudy", None)
    if cloudy is None and getattr(scenario.harvest, "cloudy_known", None) is not None:
        raise ScenarioError(
            "harvest.cloudy_known", "expected a value with harvest.cloudy only, actual cloudy missing"
        )
    for number, (first, count, _) in enumerate(cloudy or ()):
        if first + count > scenario.slots:
            raise ScenarioError(
                f"harvest.cloudy.{number}",
                f"expected an event within slots = {scenario.slots}, actual last slot {first + count - 1}",
            )


def _check_initial(initial: float | tuple[float, ...], capacity: float | tuple[float, ...]) -> None:
    lists = [value for value in (initial, capacity) if isinstance(value, tuple)]
    devices = len(lists[0]) if lists else 1
    for joule, most in zip(per_device(initial, devices), per_device(capacity, devices), strict=True):
        if joule > most:
            raise ScenarioError(
                "energy.initial", f"expected at most energy.capacity_joule = {most:g}, actual value {joule:g}"
            )


def check_kernel(field: str, kernel: tuple[tuple[float, ...], ...], levels: int) -> None:
    """Refuse what is not a square stochastic matrix of ``levels`` rows."""
    if len(kernel) != levels:
        raise ScenarioError(field, f"expected {levels} rows, actual number of rows {len(kernel)}")
    for index, row in enumerate(kernel):
        if len(row) != levels:
            raise ScenarioError(f"{field}.{index}", f"expected {levels} values, actual number of values {len(row)}")
        check_law(f"{field}.{index}", row)


def check_law(field: str, prob: tuple[float, ...]) -> None:
    """Refuse what is not a probability distribution."""
    if min(prob) < 0 or abs(sum(prob) - 1) > 1e-9:
        raise ScenarioError(
            field,
            "expected probabilities of at least 0 that sum to 1, "
            f"actual sum {sum(prob):.9g} and lowest value {min(prob):.9g}",
        )
