"""Places of devices in a scenario: from a file or a list to positions, names and links."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.files import read_text
from heliomesh.scenario.places import PlacesError, read_places

OF_GRAPH = ("topology", "devices", "edges", "positions_metre", "names", "links")  # what new places replace


def placed(network: Mapping[str, Any]) -> dict[str, Any]:
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
        refuse(
            network.get(name) is not None, f"network.{name}", f"a value here or in {field}, not in both", "number 2"
        )
    return network | found
