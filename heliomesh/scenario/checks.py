"""Checks that need several fields of a scenario."""

from itertools import pairwise
from typing import TYPE_CHECKING

from heliomesh.common import catalog
from heliomesh.scenario import parts, schema
from heliomesh.scenario.errors import ScenarioError, one_of, refuse, shortened
from heliomesh.scenario.section import LEAST_JOULE, MOST_JOULE, per_device

if TYPE_CHECKING:
    from heliomesh.scenario.scenario import Scenario


def check_together(scenario: "Scenario") -> None:
    """Checks that need more than one field."""
    network, link, learning = scenario.network, scenario.link, scenario.learning
    for section_name in schema.PER_DEVICE:
        section = getattr(scenario, section_name)
        for field in section.per_device:
            value, expected = getattr(section, field), f"one number or a list of {network.devices} (network.devices)"
            count = len(value) if isinstance(value, tuple | list) else network.devices
            refuse(count != network.devices, f"{section_name}.{field}", expected, f"number of values {count}")
    _check_energy(scenario.energy)
    needed = "a CSV file for error 'table'" if link.error == "table" else "no value but with error 'table'"
    actual = "missing" if link.table is None else shortened(link.table)
    refuse((link.table is None) == (link.error == "table"), "link.table", needed, f"value {actual}")
    _check_clouds(scenario)
    _check_name("learning.aggregation", learning.aggregation, schema.BUILT_IN_RULES, schema.AGGREGATION_CATALOG)
    _check_name("learning.optimizer", learning.optimizer or "sgd", ("sgd",), schema.OPTIMISER_CATALOG)
    _check_momentum(learning)
    _check_network(network)


def _check_network(network: schema.Network) -> None:
    """Settings that go with some graphs only, and with each other."""
    kind, positions, edges = network.topology, network.positions_metre, network.edges
    for field in ("positions_metre", "names", "links"):
        unused = kind != "places" and getattr(network, field) is not None
        refuse(unused, f"network.{field}", "a value with topology 'places' only", f"topology {kind!r}")
    if kind == "places":
        _check_places(network)
    else:
        missing = kind == "edges" and edges is None
        refuse(missing, "network.edges", "a list of pairs for topology 'edges'", "value missing")
        expected = "a value with topology 'edges' or 'places' only"
        refuse(kind != "edges" and edges is not None, "network.edges", expected, f"topology {kind!r}")
    if positions is not None and len(positions) != network.devices:
        raise ScenarioError("network.devices", f"{len(positions)}, one per place", f"value {network.devices}")


def _check_places(network: schema.Network) -> None:
    positions, names, edges, links = network.positions_metre, network.names, network.edges, network.links
    if positions is None:
        expected = "[x, y] of every device, or network.places_file"
        raise ScenarioError("network.positions_metre", expected, "value missing")
    first: dict[tuple[float, float], int] = {}
    for device, place in enumerate(positions):
        if first.setdefault(place, device) != device:
            actual = f"value {list(place)}, where device {first[place]} stands"
            raise ScenarioError(f"network.positions_metre.{device}", "a place of its own", actual)
    expected, count = f"{len(positions)} names, one per device", len(positions if names is None else names)
    refuse(count != len(positions), "network.names", expected, f"number of names {count}")
    refuse(links == "list" and edges is None, "network.edges", "a list of pairs for links = 'list'", "value missing")
    unused = links in ("radius", "budget") and edges is not None
    refuse(unused, "network.edges", "a value with network.links = 'list' only", f"links {links!r}")


def _check_momentum(learning: schema.Learning) -> None:
    """Refuse momentum for plain SGD, which has none."""
    for name in ("momentum", "second_momentum"):
        value = getattr(learning, name)
        plain = value is not None and learning.optimizer in (None, "sgd")
        expected = "a value with learning.optimizer only, since plain SGD has none"
        refuse(plain, f"learning.{name}", expected, f"value {value or 0:g}")


def _check_name(field: str, name: str, built_in: tuple[str, ...], package: str) -> None:
    """Refuse an unknown name; code that ``module:name`` means is looked at when it is used."""
    if name not in built_in and ":" not in name:
        known = sorted((*built_in, *catalog.names(package)))
        if name not in known:
            raise ScenarioError(field, one_of(known, "value", name))


def _check_energy(energy: schema.Energy) -> None:
    known, slot = parts.names("storage"), energy.slot_second
    refuse(energy.storage not in known, "energy.storage", one_of(known, "value", energy.storage))
    _check_name("energy.actions", energy.actions, (), schema.ACTION_CATALOG)
    _check_powers("energy.powers_watt", energy.powers_watt)
    _check_consumed(energy)
    smallest, largest = (extreme(per_device(energy.capacity_joule, 1)) for extreme in (min, max))
    refuse(largest > MOST_JOULE, "energy.capacity_joule", f"at most {MOST_JOULE:g}", f"value {largest:g}")
    refuse(smallest < LEAST_JOULE, "energy.capacity_joule", f"at least {LEAST_JOULE:g}", f"value {smallest:g}")
    for field, values in (("transmit_second", energy.transmit_second), ("listen_second", energy.listen_second)):
        for second in () if isinstance(values, str) else per_device(values, 1):
            refuse(second > slot, f"energy.{field}", f"at most energy.slot_second = {slot:g}", f"value {second:g}")
    unpaced = energy.transmit_second == "bits" and energy.bit_per_second is None
    refuse(unpaced, "energy.bit_per_second", "a rate for transmit_second 'bits'", "value missing")
    _check_converter(energy.converter_efficiency)
    _check_computing(energy)
    if not isinstance(energy.initial, str):
        _check_initial(energy.initial, energy.capacity_joule)


def _check_powers(field: str, powers: tuple[float, ...]) -> None:
    wrong = powers[0] != 0 or any(low >= high for low, high in pairwise(powers))
    refuse(wrong, field, "0 (idle) and then rising powers", f"value {shortened(list(powers))}")


def _check_consumed(energy: schema.Energy) -> None:
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


def _check_computing(energy: schema.Energy) -> None:
    """Refuse half of a product, and energies given twice."""
    watt, second, joule = energy.compute_watt, energy.compute_second, energy.compute_joule
    for missing, given in (("watt", "second"), ("second", "watt")):
        half = getattr(energy, f"compute_{missing}") is None and getattr(energy, f"compute_{given}") is not None
        refuse(half, f"energy.compute_{missing}", f"a value beside energy.compute_{given}", "value missing")
    twice = watt is not None and joule is not None
    refuse(twice, "energy.compute_joule", "no value beside energy.compute_watt", f"value {shortened(joule)}")
    unpaced = second == "flop" and energy.flop_per_second is None
    refuse(unpaced, "energy.flop_per_second", "a rate for compute_second 'flop'", "value missing")


def _check_converter(efficiency: float | tuple[tuple[float, float], ...] | None) -> None:
    """Refuse a table in which a larger load is not listed later, or draws less."""
    for (load, share), (next_load, next_share) in pairwise(efficiency if isinstance(efficiency, tuple) else ()):
        wrong = not (load < next_load and load / share < next_load / next_share)
        actual = f"[{load:g}, {share:g}] before [{next_load:g}, {next_share:g}]"
        refuse(wrong, "energy.converter_efficiency", "rising loads that draw more and more", actual)


def _check_clouds(scenario: "Scenario") -> None:
    cloudy = getattr(scenario.harvest, "cloudy", None)
    alone = cloudy is None and getattr(scenario.harvest, "cloudy_known", None) is not None
    refuse(alone, "harvest.cloudy_known", "a value with harvest.cloudy only", "cloudy missing")
    for number, (first, count, _) in enumerate(cloudy or ()):
        expected = f"an event within slots = {scenario.slots}"
        refuse(first + count > scenario.slots, f"harvest.cloudy.{number}", expected, f"last slot {first + count - 1}")


def _check_initial(initial: float | tuple[float, ...], capacity: float | tuple[float, ...]) -> None:
    devices = max(len(value) if isinstance(value, tuple) else 1 for value in (initial, capacity))
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
    total, lowest = sum(prob), min(prob)
    expected, actual = "probabilities of at least 0 that sum to 1", f"sum {total:.9g} and lowest value {lowest:.9g}"
    refuse(lowest < 0 or abs(total - 1) > 1e-9, field, expected, actual)


def check_atoms(joule: tuple[float, ...], prob: tuple[float, ...], row: str = "") -> None:
    """Refuse energies and probabilities of a harvest that are no law; ``row`` is their place in the scenario."""
    expected = f"one probability per value of harvest.joule{row}, that is {len(joule)}"
    refuse(len(joule) != len(prob), f"harvest.prob{row}", expected, f"number of values {len(prob)}")
    refuse(min(joule) < 0, f"harvest.joule{row}", "energies of at least 0", f"value {list(joule)}")
    check_law(f"harvest.prob{row}", prob)
