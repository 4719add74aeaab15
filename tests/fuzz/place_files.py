"""Files of places: tables and GeoJSON."""

import json
from pathlib import Path

from tests.fuzz.mutation import Rng, spoiled_text, spoiled_tree


def places(rng: Rng, originals: Path, place: Path) -> list[str]:
    """A file of up to eight places near each other, damaged, and a scenario that names it."""
    degrees = [(48 + 0.001 * rng.random(), 11 + 0.001 * rng.random()) for _ in range(rng.integers(1, 9))]
    make, ending = ((_table, "csv"), (_features, "geojson"))[rng.integers(2)]
    (place / f"places.{ending}").write_bytes(spoiled_text(rng, make(rng, degrees)))
    file = place / "scenario.toml"
    links = ("", "links = 'budget'\n", "links = 'list'\n", "allow_disconnected = true\n")[rng.integers(4)]
    radio = "[link]\npath_loss = 'log-distance'\nnoise_watt = 2e-14\n"
    network = f"[network]\nplaces_file = 'places.{ending}'\n{links}"
    file.write_text(f"slots = 3\n{network}{radio}", encoding="utf-8")
    return ["scenario", ("validate", "show")[rng.integers(2)], str(file)]


def _table(rng: Rng, degrees: list[tuple[float, float]]) -> str:
    heading = ("latitude,longitude", "x_metre,y_metre", "latitude,y_metre")[rng.integers(3)]
    return "\n".join([heading, *(f"{a:.6f},{b:.6f}" for a, b in degrees)])


def _features(rng: Rng, degrees: list[tuple[float, float]]) -> str:
    points = [{"type": "Point", "coordinates": [longitude, latitude]} for latitude, longitude in degrees]
    features = [{"type": "Feature", "properties": {"name": "a"}, "geometry": point} for point in points]
    data = {"type": "FeatureCollection", "features": features}
    return json.dumps(spoiled_tree(rng, data) if rng.random() < 0.5 else data, default=str)
