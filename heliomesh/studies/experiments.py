"""The experiments: every figure and table of the paper, and what goes beyond it, as one table.

An experiment lists its lines: schemes on scenarios over paired seeds. All are variants of the paper's tasks on
`ring10` (scarce energy, diameter five, an exact optimum) unless they name another network. Each has a quick version
for two cores, which trains digits or synthetic clusters for 60 slots.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import cleandoc
from itertools import combinations, product
from typing import Any

from heliomesh.common import catalog
from heliomesh.jobs.job import IDEAL
from heliomesh.jobs.scheme import Scheme
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.on_air import Format
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import Learning
from heliomesh.studies.decomposition import label_of
from heliomesh.studies.line import BY_SCENARIO, LOSSLESS, OURS, PAIRS, PAPER, SEARCHED, Line
from heliomesh.studies.results import Against
from heliomesh.studies.schemes import (
    AGREE_SLOTS,
    BESIDE_TUNED,
    CHANGES,
    COUPLED,
    IDEALS,
    RIVALS,
    SEPARATE,
    tuned_schemes,
)
from heliomesh.tasks.footprint import update_bits

Changes = Mapping[str, Any]
Rows = Callable[..., list[Line]]  # whether quick → lines


@dataclass(frozen=True)
class Experiment:
    """A figure: what it asks, and its lines."""

    name: str
    question: str
    title: str
    rows: Rows
    against: Against  # what lines are compared with, seed by seed
    place: str | None = None  # what the horizontal axis shows; None: slots
    of_paper: str | None = None  # which of the paper's figures it is
    radio: bool = False  # whether it is about joules spent on sending
    shared: bool = False  # whether lines named by their changes are all sets of these, see `decomposition.py`
    earlier: "Experiment | None" = None  # whose published results are shown until all lines are there

    def lines(self, quick: bool) -> list[Line]:
        """All lines, under the experiment's name."""
        return [replace(line, figure=self.name) for line in self.rows(quick)]


def experiment(title: str, against: Against, **facts: Any) -> Callable[[Rows], Experiment]:
    """Make an experiment of a function that lists its lines; its name and the first line of its docstring count."""

    def made(rows: Rows) -> Experiment:
        question = cleandoc(rows.__doc__ or "").partition("\n")[0]
        return Experiment(rows.__name__, question, title, rows, against, **facts)

    return made


@dataclass(frozen=True)
class Task:
    """Learning settings of a full and of a quick experiment."""

    full: Changes
    quick: Changes
    full_seeds: int

    def scenario(self, quick: bool, *changes: Changes, network: str = "ring10") -> Scenario:
        """A network with this task and further changes."""
        parts = (self.quick if quick else self.full, *changes)
        return Scenario.load(network).override({name: value for part in parts for name, value in part.items()})

    def line(
        self,
        quick: bool,
        scheme: Scheme,
        setting: str,
        *changes: Changes,
        network: str = "ring10",
        factor: int = 1,
        place: float | None = None,
    ) -> Line:
        """One scheme on a network with this task and further changes; quick versions have three paired seeds."""
        scenario = scheme.scenario(self.scenario(quick, *changes, network=network))
        return Line("", scheme, scenario, 3 if quick else factor * self.full_seeds, setting, place)

    def grid(
        self,
        quick: bool,
        schemes: Iterable[Scheme],
        settings: Mapping[str, Changes],
        places: Mapping[float | None, Changes] | None = None,
        factor: int = 1,
    ) -> list[Line]:
        """Every scheme in every setting and at every place, on the paper's grid."""
        return [
            self.line(quick, scheme, setting, _PAPER, changes, at, factor=factor, place=place)
            for setting, changes in settings.items()
            for place, at in (places or {None: {}}).items()
            for scheme in schemes
        ]


FASHION_MNIST = Task(
    full={"learning.dataset": "fashion_mnist", "slots": 200},
    quick={"learning.dataset": "digits", "slots": 60},
    full_seeds=10,
)
_RESNET18: Changes = {
    "learning.dataset": "cifar10",
    "learning.learning_rate": 0.05,
    "learning.batch": 64,
    "slots": 300,
}
# A slot's 1.07 · 10¹² operations take a Jetson Nano 3.6 s and 36 J. As on `ring10`, the battery holds two slots of
# training and sending at full power, and the harvest is .27 of what they need.
_JETSON_NANO: Changes = {
    "energy.board": "jetson-nano",
    "energy.slot_second": 6.0,
    "energy.capacity_joule": 75.0,
    "harvest.panel_cm2": 162.0,
}
CIFAR10 = Task(
    full={**_RESNET18, **_JETSON_NANO},
    quick={"learning.dataset": "synthetic", "learning.model": "mlp", "learning.learning_rate": 0.05, "slots": 60},
    full_seeds=10,
)
_AS_CNN = replace(CIFAR10, full={**_RESNET18, "energy.compute_joule": 0.72}, full_seeds=5)


def _with_earlier(one: Experiment) -> Experiment:
    """An experiment of a task whose published results were charged the energy of another, which their title says."""
    title = f"{one.title}, a slot of training charged 0.72 J as for Fashion-MNIST"
    return replace(one, earlier=replace(one, title=title, rows=partial(one.rows, task=_AS_CNN)))


# gossip that keeps the weight of lost packets, and one grid for all schemes, on which the exact optimum is quick
_PAPER: Changes = {"learning.aggregation": "model", "energy.battery_levels": 5}
_PANEL: dict[str, Any] = {"harvest.panel_cm2": 25.0}  # the paper's; `ring10` has half of it

IID: dict[str, Any] = {"learning.partition": "iid"}
DIRICHLET: dict[str, Any] = {"learning.partition": "dirichlet", "learning.alpha": 0.8}
SKEWED: dict[str, Any] = {"learning.partition": "dirichlet", "learning.alpha": 0.1}
PARTITIONS = {"i.i.d.": IID, "Dir(0.8)": DIRICHLET}
THREE_PARTITIONS = {**PARTITIONS, "Dir(0.1)": SKEWED}


@_with_earlier
@experiment("Accuracy over slots, CIFAR-10", PAIRS, of_paper="Fig. 3")
def accuracy_cifar10(quick: bool, task: Task = CIFAR10) -> list[Line]:
    """Accuracy against slots on CIFAR-10 with ResNet-18, i.i.d. and Dir(0.8), all schemes."""
    return task.grid(quick, (*PAPER, *OURS, LOSSLESS), PARTITIONS)


@experiment("Accuracy over slots, Fashion-MNIST", PAIRS, of_paper="Fig. 2")
def accuracy_fashion_mnist(quick: bool) -> list[Line]:
    """Accuracy against slots on Fashion-MNIST, i.i.d. and Dir(0.8), all schemes."""
    return FASHION_MNIST.grid(quick, (*PAPER, *OURS, LOSSLESS), PARTITIONS)


@experiment("The literal form at a searched γ, Fashion-MNIST", PAIRS)
def literal(quick: bool) -> list[Line]:
    """Algorithm 1 to the letter at its best γ, its default form and SCA, on `ring10` and with the paper's panel."""
    forms = (Scheme(label, "decentralized", form | {"hops": 2}) for label, form in BY_SCENARIO.items())
    schemes = (*forms, Scheme("myopic (SCA)", "myopic"))
    return FASHION_MNIST.grid(quick, schemes, _with_whole_panel(quick, PARTITIONS))


def _order_of_schemes(quick: bool, variants: Mapping[str, Changes]) -> list[Line]:
    """The paper's schemes and `receiver`, under every variant of `ring10` and every partition."""
    settings = {
        f"{setting}, {variant}": {**changes, **partition}
        for variant, changes in variants.items()
        for setting, partition in PARTITIONS.items()
    }
    # schemes of one order lie closer together than the usual seeds can show
    return FASHION_MNIST.grid(quick, (*PAPER, OURS[0]), settings, factor=4)


_GOSSIP = {"learning.aggregation": "model", "network.mixing": "metropolis"}
# the paper's rule diverges unless the mixing matrix has no negative eigenvalue, so it comes with lazy weights
_UPDATE = {"learning.aggregation": "update", "network.mixing": "lazy-metropolis"}
_RULES: Mapping[str, Changes] = {
    "model gossip": _GOSSIP,
    "model gossip, lazy": {"learning.aggregation": "model", "network.mixing": "lazy-metropolis"},
    "update rule, lazy": _UPDATE,
    "renormalized": {"learning.aggregation": "renormalized", "network.mixing": "metropolis"},
}


@experiment(
    "Accuracy over slots under strong interference, Fashion-MNIST", PAIRS, of_paper="Fig. 2, with more interference"
)
def accuracy_interference(quick: bool) -> list[Line]:
    """The paper's order of schemes at φ = 3, where more packets are lost, under gossip and the paper's rule.

    On `ring10` itself the schemes train equally often and differ in arrivals only, which costs less accuracy than ten
    seeds can show. With φ = 3 they differ more.
    """
    rules = {"gossip": _GOSSIP, "update rule": _UPDATE}
    return _order_of_schemes(quick, {name: {"link.waterfall": 3.0, **rule} for name, rule in rules.items()})


@experiment(
    "Accuracy over slots with the paper's panel, Fashion-MNIST", PAIRS, of_paper="Fig. 2, with the paper's panel"
)
def accuracy_panel(quick: bool) -> list[Line]:
    """The paper's order of schemes with its own panel of 25 cm², at the usual and a low waterfall threshold.

    `ring10` halves the panel, so that batteries rarely hold enough for the larger power and every scheme sends at the
    smaller one. With the whole panel a scheme can waste energy on power that others save for training.
    """
    return _order_of_schemes(quick, {f"φ = {phi:g}": _PANEL | {"link.waterfall": phi} for phi in (1.0, 0.3)})


@experiment("Aggregation rules, Fashion-MNIST", "model gossip", of_paper="Section II, the rule of aggregation")
def aggregation(quick: bool) -> list[Line]:
    """Gossip of models against the paper's rule of adding updates, i.i.d. and Dir(0.8)."""
    schemes = [Scheme(label, "receiver", changes=rule) for label, rule in _RULES.items()]
    return FASHION_MNIST.grid(quick, schemes, PARTITIONS)


@experiment("Accuracy over battery capacity, Fashion-MNIST", PAIRS, place="battery capacity [J]", of_paper="Fig. 4")
def battery(quick: bool) -> list[Line]:
    """Accuracy against battery capacity: does the gain over the baselines widen?

    The planning grid keeps its step of one joule.
    """
    capacities = (2, 4) if quick else (2, 3, 4, 6, 8)
    places: dict[float | None, Changes] = {
        capacity: {"energy.capacity_joule": float(capacity), "energy.battery_levels": capacity + 1}
        for capacity in capacities
    }
    return FASHION_MNIST.grid(quick, (*PAPER, *OURS), PARTITIONS, places)


def _with_whole_panel(quick: bool, settings: Mapping[str, Changes]) -> dict[str, Changes]:
    """Settings on `ring10`, and the same with the paper's panel, twice as large."""
    whole = (
        {} if quick else {f"{name}, 25 cm²".removeprefix(", "): {**own, **_PANEL} for name, own in settings.items()}
    )
    return {**settings, **whole}


def _forms(quick: bool, option: str, values: Sequence[int], settings: Mapping[str, Changes]) -> list[Line]:
    """Both forms of the proposal with two hops, at every value of an option."""
    return [
        FASHION_MNIST.line(quick, Scheme(label, "decentralized", options), setting, _PAPER, changes, place=value)
        for setting, changes in _with_whole_panel(quick, settings).items()
        for value in values
        for label, options in ((label, form | {"hops": 2, option: value}) for label, form in BY_SCENARIO.items())
    ]


@experiment("Accuracy over hops, Fashion-MNIST", 2, place="hops k", of_paper="Table I")
def hops(quick: bool) -> list[Line]:
    """Accuracy against the number of hops that a device sees, k = 0 to 3, on a ring of diameter five."""
    return _forms(quick, "hops", range(4), PARTITIONS)


@experiment("Accuracy over rounds, Fashion-MNIST, Dir(0.8)", 0, place="rounds R", of_paper="Fig. 5")
def rounds(quick: bool) -> list[Line]:
    """Accuracy against the number of improvement rounds R, none included."""
    return _forms(quick, "rounds", (0, 2) if quick else (0, 1, 2, 5, 10, 20), {"": DIRICHLET})


_DEFAULTS: dict[str, Changes] = {
    "idle, full battery": {},
    "idle, empty battery": {"default_battery": "empty"},
    "idle, worst gain": {"default_gain": "worst"},
    "idle, best gain": {"default_gain": "best"},
    "low power, full battery": {"default_action": 1},
    "high power, full battery": {"default_action": 2},
}


@experiment(
    "Default state and action of the literal form, Fashion-MNIST, Dir(0.8)",
    "idle, full battery",
    of_paper="Section IV, the default state and action",
)
def defaults(quick: bool) -> list[Line]:
    """Do the default state and action of devices out of sight matter to the literal form? The paper says no.

    Each of them has its own γ, as R has.
    """
    found = []
    for rounds in (5,) if quick else (5, 20):
        literal = BY_SCENARIO[SEARCHED] | {"hops": 2, "rounds": rounds}
        schemes = [Scheme(label, "decentralized", {**literal, **default}) for label, default in _DEFAULTS.items()]
        found += FASHION_MNIST.grid(quick, schemes, _with_whole_panel(quick, {f"R = {rounds}": DIRICHLET}))
    return found


NETWORKS: dict[str, tuple[str, Changes]] = {
    "ring10": ("ring10", {}),
    "ring10, 25 cm²": ("ring10", _PANEL),
    "grid25": ("grid25", {}),
    "geometric30": ("geometric30", {}),
}


def settings_of_networks(quick: bool) -> Iterable[tuple[str, str, Changes, Changes]]:
    """Every network under every partition: name, setting, changes of both; a quick version has one network."""
    for network, (name, changes) in NETWORKS.items():
        if not quick or network == name == "ring10":
            for partition, own in THREE_PARTITIONS.items():
                yield name, f"{network}, {partition}", changes, own


@experiment("Planning for learning on equal terms, Fashion-MNIST", "contributions")
def learning(quick: bool) -> list[Line]:
    """Planning for learning, planning for packets and rules of thumb: equal terms, tuned by one search.

    The ideals do not ask how large panels are. Two hops of the paper's proposal fit into memory on `ring10` only.
    """
    return [
        FASHION_MNIST.line(quick, scheme, setting, changes, partition, network=name)
        for name, setting, changes, partition in settings_of_networks(quick)
        for scheme in (*tuned_schemes(setting), *BESIDE_TUNED, *(() if changes else IDEALS))
        if scheme.planner != "decentralized" or name == "ring10"
    ]


@experiment("The parts of planning for learning, Fashion-MNIST", label_of(frozenset()), shared=True)
def parts(quick: bool) -> list[Line]:
    """What are the aggregation rule, separate actions, an agreement phase and the plan worth, each on its own?

    On `ring10`; planners as shipped.
    """
    subsets = [frozenset(some) for size in range(len(CHANGES) + 1) for some in combinations(CHANGES, size)]
    found = []
    for (setting, partition), made in product(THREE_PARTITIONS.items(), subsets):
        rule, actions, _, planner = (pair[one in made] for one, pair in CHANGES.items())
        terms = {"learning.aggregation": rule, "energy.actions": actions}
        scheme = Scheme(label_of(made), planner, {}, terms, AGREE_SLOTS if "agreement" in made else 0)
        found.append(FASHION_MNIST.line(quick, scheme, f"ring10, {setting}", partition))
    return found


@_with_earlier
@experiment("Planning for learning, CIFAR-10", "contributions")
def learning_cifar10(quick: bool, task: Task = CIFAR10) -> list[Line]:
    """Planning for learning against planning for packets on CIFAR-10 with ResNet-18, on `ring10`.

    The objective and its constants are those of Fashion-MNIST. The ideal is that of `accuracy_cifar10`.
    """
    found = []
    for (setting, partition), scheme in product(PARTITIONS.items(), RIVALS):
        paper = _PAPER if scheme.planner == IDEAL else {}
        factor = 2 if task is _AS_CNN and scheme.label in ("coupled", "news", "contributions") else 1
        found.append(task.line(quick, scheme, setting, paper, partition, factor=factor))
    return found


_FORMATS: tuple[Format, ...] = ("float32", "float16", "int8", "top-k")
_FLOAT32_SECOND = 2.0  # the paper's transmission time


@experiment("Formats on the air, Fashion-MNIST", "float32", radio=True)
def on_air(quick: bool) -> list[Line]:
    """Formats on the air at equal harvests: fewer bits take less time, so their joules serve something else.

    Every format in its own share of two seconds, and two of them in the time of float32, under its very traces.
    """
    dataset = FASHION_MNIST.scenario(quick).learning.dataset
    bits = {name: update_bits(Learning(dataset=dataset, on_air=name)) for name in _FORMATS}
    sent: dict[str, Changes] = {
        name: {"learning.on_air": name, "energy.transmit_second": _FLOAT32_SECOND * own / bits["float32"]}
        for name, own in bits.items()
    }
    sent |= {f"{name}, in 2 s": {"learning.on_air": name} for name in ("int8", "top-k")}
    line = partial(FASHION_MNIST.line, quick, network="geometric30")
    return [
        line(Scheme(label, "contributions"), "geometric30, Dir(0.8)", SEPARATE, DIRICHLET, changes)
        for label, changes in sent.items()
    ]


# what `heliomesh study pilot ring10 --set learning.dataset=fashion_mnist` prints with each partition
_PILOT = {"i.i.d.": 0.22, "Dir(0.8)": 0.715, "Dir(0.1)": 2.66}


@experiment("Weights of bias and deadlines, Fashion-MNIST", "pilot")
def weights(quick: bool) -> list[Line]:
    """How good is the weight of bias that a pilot finds, and what do deadlines all along bring?

    The coupled plan, the pilot's weight of bias, weights of a grid, the guess by label counts, all deadlines.
    """
    found = []
    for setting, partition in THREE_PARTITIONS.items():
        pilot = {"cost.unlikeness": _PILOT[setting]}
        variants: dict[str, Changes] = {
            "pilot": pilot,
            **{f"weight {weight:g}": {"cost.unlikeness": weight} for weight in (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)},
            "guess": {},
            "always": {**pilot, "cost.deadline": "always"},
        }
        schemes = [Scheme("coupled", "receiver", changes=COUPLED)]
        schemes += [Scheme(label, "contributions", {}, {**SEPARATE, **own}) for label, own in variants.items()]
        found += [FASHION_MNIST.line(quick, scheme, setting, partition) for scheme in schemes]
    return found


EXPERIMENTS = (
    *(accuracy_cifar10, accuracy_fashion_mnist, accuracy_interference, accuracy_panel, aggregation, battery),
    *(defaults, hops, learning, learning_cifar10, literal, on_air, parts, rounds, weights),
)


def experiments(asked: Sequence[str | Experiment] | None) -> list[Experiment]:
    """Experiments by name, of one's own as they are, or all; raises ScenarioError for an unknown name."""
    known = {one.name: one for one in EXPERIMENTS}
    found = []
    for one in dict.fromkeys(asked or known):
        if isinstance(one, str) and one not in known:
            hint = catalog.nearest(one, list(known))
            raise ScenarioError("experiment", f"one of {', '.join(known)}", f"value {one!r}{hint}")
        found.append(known[one] if isinstance(one, str) else one)
    return found
