"""The tables of a scenario file: every field with its unit, default and range.

A harvest or channel source or a storage law brings its own settings in its own file, class ``Settings`` of
`physics/harvest/*.py`, `physics/channels/*.py` or `physics/storages/*.py`, so that a new one is one new file.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from heliomesh.common import catalog
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.on_air import Format
from heliomesh.scenario.section import (
    MOST_WATT,
    ConverterEfficiency,
    Count,
    Decay,
    Edge,
    Fraction,
    NonNegative,
    PerDeviceNonNegative,
    PerDevicePositive,
    Positive,
    Section,
    Share,
    Vector,
)

HARVEST_CATALOG = "heliomesh.physics.harvest"
CHANNEL_CATALOG = "heliomesh.physics.channels"
STORAGE_CATALOG = "heliomesh.physics.storages"
ACTION_CATALOG = "heliomesh.model.action_sets"
AGGREGATION_CATALOG = "heliomesh.learning.aggregations"
OPTIMISER_CATALOG = "heliomesh.learning.optimisers"

AtLeastOne = Annotated[int, Field(ge=1)]
Part = Annotated[float, Field(gt=0, le=1)]
Powers = Annotated[Vector, Field(max_length=1000)]
PerDeviceShare = Share | Annotated[tuple[Share, ...], Field(strict=False)]
PerDeviceDecay = Decay | Annotated[tuple[Decay, ...], Field(strict=False)]
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
        description="CSV or GeoJSON file of places; what it holds becomes positions_metre and names",
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
    rows: AtLeastOne | None = Field(None, description="grid only; default: nearest to a square")
    degree: AtLeastOne = Field(4, description="degree of a random regular graph")
    mean_degree: Annotated[float, Field(ge=1e-9)] = Field(
        4.0, description="target mean degree of a geometric graph; expected degree of an Erdős–Rényi graph"
    )
    max_degree: AtLeastOne | None = Field(None, description="refuse geometric and Erdős–Rényi draws above it")
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
    forecast: Fraction | None = Field(
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


class StorageSettings(Section):
    """What the settings of every storage law have."""

    source: str = Field("linear", description="how stored energy leaks: a name of `physics/storages`, or module:name")


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
    powers_watt: Powers = Field((0.0, 0.1, 0.4), description="radiated powers [W]: 0, then rising")
    consumed_watt: Powers | None = Field(
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
    actions: str = Field("coupled", description="what a device can do: a name of `model/action_sets`, or module:name")
    train_only: bool = Field(False, description="coupled actions: adds 'train, don't send'")
    capacity_joule: PerDevicePositive = Field(4.0, description="most energy that a battery holds [J]")
    battery_levels: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="points of every planner's battery grid; default: each planner chooses its own"
    )
    initial: Literal["uniform-grid", "uniform"] | PerDeviceNonNegative = Field(
        "uniform-grid",
        description="first stored energy: uniform, uniform on battery_levels points (else 9), or joules per device",
    )
    storage: str = Field(
        "ideal", description="a name of `scenario/storages`, whose losses stand in for the next three fields"
    )
    charge_efficiency: PerDeviceShare | None = Field(None, description="share of the harvest that is stored")
    leak_per_day: PerDeviceDecay | None = Field(None, description="share of the stored energy that a day takes")
    converter_efficiency: ConverterEfficiency | None = Field(
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
    control_loss: Decay | None = Field(
        None, description="share of bids and grants that a neighbour does not hear; default: 0"
    )
    control: Literal["free", "paid"] | None = Field(
        None, description="whether batteries pay for the messages of a plan in every slot; default: free"
    )
    control_header_byte: NonNegative | None = Field(
        None, description="preamble and header of each such message, in bytes, if they are paid; default: 12"
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

    dataset: str = Field("digits", description="a name of `tasks/datasets`, or module:function")
    path: str | None = Field(None, description="of the user's own data, for datasets that ask for one")
    model: str = Field("auto", description="a name of `tasks/models`, module:factory, or auto: by inputs' shape")
    buffers: Literal["refuse", "drop"] = Field(
        "refuse", description="what becomes of models with running statistics; 'drop': BatchNorm goes on without"
    )
    validation: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="share of the training samples that is held out and scored in place of the test set"
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
    final_rate: Part | None = Field(
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
    top_k_share: Part = Field(0.1, description="top-k: share of a model's entries that one packet carries")


SOURCES: dict[str, tuple[str, type[Section], str]] = {  # catalog, what all settings have, default
    "channel": (CHANNEL_CATALOG, ChannelSettings, "rayleigh"),
    "harvest": (HARVEST_CATALOG, HarvestSettings, "solar"),
    "storage": (STORAGE_CATALOG, StorageSettings, "linear"),
}


def source_settings(section: str, source: str) -> type[Section]:
    """The settings' class of a channel or harvest source, or of a storage law."""
    package, common, _ = SOURCES[section]
    settings: type[Section] = getattr(variant(package, source, f"{section}.source"), "Settings", common)
    return settings


def variant(package: str, name: str, field: str) -> Any:
    """A variant of a catalog by the name that a user gave in ``field``; raises ScenarioError."""
    try:
        return catalog.find(package, name)
    except catalog.UnknownVariantError as error:
        raise ScenarioError(field, str(error)) from None


def of_sources() -> list[tuple[str, str, type[Section]]]:
    """Section, name and settings of all sources of the catalogs."""
    named = [(section, name) for section, (package, _, _) in SOURCES.items() for name in catalog.names(package)]
    return [(section, name, source_settings(section, name)) for section, name in named]


PER_DEVICE = ("channel", "link", "energy", "harvest", "storage")  # sections that may have a number for each device
BUILT_IN_RULES = ("model", "update", "renormalized", "reassigned")
