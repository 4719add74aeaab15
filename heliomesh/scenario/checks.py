"""Checks that need several fields of a scenario."""

from itertools import pairwise
from typing import TYPE_CHECKING

from heliomesh.common import catalog
from heliomesh.scenario import parts
from heliomesh.scenario.errors import ScenarioError, one_of, refuse, shortened
from heliomesh.scenario.schema import (
    AGGREGATION_CATALOG,
    BUILT_IN_RULES,
    OPTIMISER_CATALOG,
    PER_DEVICE,
    Energy,
    Learning,
    Link,
    Network,
)
from heliomesh.scenario.section import LEAST_JOULE, MOST_JOULE, per_device

if TYPE_CHECKING:
    from heliomesh.scenario.scenario import Scenario


def check_together(scenario: "Scenario") -> None:
    """Checks that need more than one field."""
    network = scenario.network
    for section_name in PER_DEVICE:
        section = getattr(scenario, section_name)
        for field in section.per_device:
            value = getattr(section, field)
            if isinstance(value, (tuple, list)) and len(value) != network.devices:
                expected = f"one number or a list of {network.devices} (network.devices)"
                raise ScenarioError(f"{section_name}.{field}", expected, f"number of values {len(value)}")
    _check_energy(scenario.energy)
    _check_link(scenario.link)
    _check_clouds(scenario)
    _check_name("learning.aggregation", scenario.learning.aggregation, BUILT_IN_RULES, AGGREGATION_CATALOG)
    _check_name("learning.optimizer", scenario.learning.optimizer or "sgd", ("sgd",), OPTIMISER_CATALOG)
    _check_momentum(scenario.learning)
    _check_network(network)


def _check_network(network: Network) -> None:
    """Settings that go with some graphs only, and with each other."""
    kind, positions = network.topology, network.positions_metre
    for field in ("positions_metre", "names", "links"):
        if kind != "places" and getattr(network, field) is not None:
            raise ScenarioError(f"network.{field}", "a value with topology 'places' only", f"topology {kind!r}")
    if kind == "places":
        _check_places(network)
    elif kind == "edges" and network.edges is None:
        raise ScenarioError("network.edges", "a list of pairs for topology 'edges'", "value missing")
    elif kind != "edges" and network.edges is not None:
        raise ScenarioError("network.edges", "a value with topology 'edges' or 'places' only", f"topology {kind!r}")
    if positions is not None and len(positions) != network.devices:
        raise ScenarioError("network.devices", f"{len(positions)}, one per place", f"value {network.devices}")


def _check_places(network: Network) -> None:
    positions, names, edges = network.positions_metre, network.names, network.edges
    if positions is None:
        expected = "[x, y] of every device, or network.places_file"
        raise ScenarioError("network.positions_metre", expected, "value missing")
    first: dict[tuple[float, float], int] = {}
    for device, place in enumerate(positions):
        if first.setdefault(place, device) != device:
            actual = f"value {list(place)}, where device {first[place]} stands"
            raise ScenarioError(f"network.positions_metre.{device}", "a place of its own", actual)
    if names is not None and len(names) != len(positions):
        expected = f"{len(positions)} names, one per device"
        raise ScenarioError("network.names", expected, f"number of names {len(names)}")
    if network.links == "list" and edges is None:
        raise ScenarioError("network.edges", "a list of pairs for links = 'list'", "value missing")
    if network.links in ("radius", "budget") and edges is not None:
        raise ScenarioError("network.edges", "a value with network.links = 'list' only", f"links {network.links!r}")


def _check_momentum(learning: Learning) -> None:
    """Refuse momentum for plain SGD, which has none."""
    for name in ("momentum", "second_momentum"):
        value = getattr(learning, name)
        if value is not None and learning.optimizer in (None, "sgd"):
            expected = "a value with learning.optimizer only, since plain SGD has none"
            raise ScenarioError(f"learning.{name}", expected, f"value {value:g}")


def _check_name(field: str, name: str, built_in: tuple[str, ...], package: str) -> None:
    """Refuse an unknown name; code that ``module:name`` means is looked at when it is used."""
    if name not in built_in and ":" not in name:
        known = sorted((*built_in, *catalog.names(package)))
        if name not in known:
            raise ScenarioError(field, one_of(known, "value", name))


def _check_energy(energy: Energy) -> None:
    known = parts.names("storage")
    if energy.storage not in known:
        raise ScenarioError("energy.storage", one_of(known, "value", energy.storage))
    _check_powers("energy.powers_watt", energy.powers_watt)
    _check_consumed(energy)
    smallest, largest = (extreme(per_device(energy.capacity_joule, 1)) for extreme in (min, max))
    refuse(largest > MOST_JOULE, "energy.capacity_joule", f"at most {MOST_JOULE:g}", f"value {largest:g}")
    refuse(smallest < LEAST_JOULE, "energy.capacity_joule", f"at least {LEAST_JOULE:g}", f"value {smallest:g}")
    _check_sending(energy)
    _check_computing(energy)
    if not isinstance(energy.initial, str):
        _check_initial(energy.initial, energy.capacity_joule)


def _check_powers(field: str, powers: tuple[float, ...]) -> None:
    if powers[0] != 0 or any(low >= high for low, high in pairwise(powers)):
        raise ScenarioError(field, "0 (idle) and then rising powers", f"value {shortened(list(powers))}")


def _check_consumed(energy: Energy) -> None:
    """Refuse consumptions that are not one per power, or below what is radiated."""
    drawn, radiated = energy.consumed_watt, energy.powers_watt
    if drawn is None:
        return
    expected = f"one value for each of the {len(radiated)} in energy.powers_watt"
    refuse(len(drawn) != len(radiated), "energy.consumed_watt", expected, f"number of values {len(drawn)}")
    _check_powers("energy.consumed_watt", drawn)
    for index, (watt, sent) in enumerate(zip(drawn, radiated, strict=True)):
        expected = f"at least the {sent:g} W that are radiated"
        refuse(watt < sent, f"energy.consumed_watt.{index}", expected, f"value {watt:g}")


def _check_sending(energy: Energy) -> None:
    if energy.transmit_second == "bits":
        if energy.bit_per_second is None:
            raise ScenarioError("energy.bit_per_second", "a rate for transmit_second 'bits'", "value missing")
    elif energy.transmit_second > energy.slot_second:
        expected = f"at most energy.slot_second = {energy.slot_second:g}"
        raise ScenarioError("energy.transmit_second", expected, f"value {energy.transmit_second:g}")
    for second in per_device(energy.listen_second, 1):
        expected = f"at most energy.slot_second = {energy.slot_second:g}"
        refuse(second > energy.slot_second, "energy.listen_second", expected, f"value {second:g}")
    _check_converter(energy.converter_efficiency)


def _check_computing(energy: Energy) -> None:
    """Refuse half of a product, and energies given twice."""
    watt, second = energy.compute_watt, energy.compute_second
    if (watt is None) != (second is None):
        missing, given = ("watt", "second") if watt is None else ("second", "watt")
        raise ScenarioError(f"energy.compute_{missing}", f"a value beside energy.compute_{given}", "value missing")
    if watt is not None and energy.compute_joule is not None:
        expected = "no value beside energy.compute_watt"
        raise ScenarioError("energy.compute_joule", expected, f"value {shortened(energy.compute_joule)}")
    if second == "flop" and energy.flop_per_second is None:
        raise ScenarioError("energy.flop_per_second", "a rate for compute_second 'flop'", "value missing")


def _check_link(link: Link) -> None:
    if (link.table is None) == (link.error == "table"):
        needed = "a CSV file for error 'table'" if link.error == "table" else "no value but with error 'table'"
        actual = "missing" if link.table is None else shortened(link.table)
        raise ScenarioError("link.table", needed, f"value {actual}")


def _check_converter(efficiency: float | tuple[tuple[float, float], ...] | None) -> None:
    """Refuse a table in which a larger load is not listed later, or draws less."""
    if not isinstance(efficiency, tuple):
        return
    for (load, share), (next_load, next_share) in pairwise(efficiency):
        if not (load < next_load and load / share < next_load / next_share):
            actual = f"[{load:g}, {share:g}] before [{next_load:g}, {next_share:g}]"
            raise ScenarioError("energy.converter_efficiency", "rising loads that draw more and more", actual)


def _check_clouds(scenario: "Scenario") -> None:
    cloudy = getattr(scenario.harvest, "cloudy", None)
    if cloudy is None and getattr(scenario.harvest, "cloudy_known", None) is not None:
        raise ScenarioError("harvest.cloudy_known", "a value with harvest.cloudy only", "cloudy missing")
    for number, (first, count, _) in enumerate(cloudy or ()):
        expected = f"an event within slots = {scenario.slots}"
        refuse(first + count > scenario.slots, f"harvest.cloudy.{number}", expected, f"last slot {first + count - 1}")


def _check_initial(initial: float | tuple[float, ...], capacity: float | tuple[float, ...]) -> None:
    lists = [value for value in (initial, capacity) if isinstance(value, tuple)]
    devices = len(lists[0]) if lists else 1
    for joule, most in zip(per_device(initial, devices), per_device(capacity, devices), strict=True):
        refuse(joule > most, "energy.initial", f"at most energy.capacity_joule = {most:g}", f"value {joule:g}")


def check_kernel(field: str, kernel: tuple[tuple[float, ...], ...], levels: int) -> None:
    """Refuse what is not a square stochastic matrix of ``levels`` rows."""
    refuse(len(kernel) != levels, field, f"{levels} rows", f"number of rows {len(kernel)}")
    for index, row in enumerate(kernel):
        refuse(len(row) != levels, f"{field}.{index}", f"{levels} values", f"number of values {len(row)}")
        check_law(f"{field}.{index}", row)


def check_law(field: str, prob: tuple[float, ...]) -> None:
    """Refuse what is not a probability distribution."""
    if min(prob) < 0 or abs(sum(prob) - 1) > 1e-9:
        expected = "probabilities of at least 0 that sum to 1"
        raise ScenarioError(field, expected, f"sum {sum(prob):.9g} and lowest value {min(prob):.9g}")
