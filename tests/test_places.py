"""Places from files: what is read, how degrees become metres, and the sentence for everything that is wrong."""

import json
import math
from pathlib import Path

import pytest

from heliomesh.common.delimited import TableError
from heliomesh.jobs.job import Job
from heliomesh.physics.topology import build_topology
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.places import Places, read_places
from heliomesh.scenario.scenario import Scenario

CSV = "name,x_metre,y_metre\nroof,0,0\ngate,100,0\nbarn,100,120.5\n"
DEGREES = "latitude,longitude\n48.0,11.0\n48.001,11.0\n48.0,11.002\n"


def points(*coordinates, names=()):
    features = [
        {
            "type": "Feature",
            "properties": {"name": names[index]} if names else None,
            "geometry": {"type": "Point", "coordinates": list(pair)},
        }
        for index, pair in enumerate(coordinates)
    ]
    return json.dumps({"type": "FeatureCollection", "features": features})


METRES = ((0.0, 0.0), (100.0, 0.0), (100.0, 120.5))
NAMES = ("roof", "gate", "barn")


@pytest.mark.parametrize(
    ("suffix", "text", "expected"),
    [
        (".csv", CSV, Places(METRES, NAMES)),
        (".csv", CSV.replace("\n", "\r\n"), Places(METRES, NAMES)),
        (".csv", CSV.replace(",", ";").replace(".", ","), Places(METRES, NAMES)),
        (".csv", "y_metre,note,x_metre\n0,a,0\n0,b,100\n120.5,c,100\n", Places(METRES)),
        (".csv", 'name,x_metre,y_metre\n"roof, south",1,2\n\n', Places(((1.0, 2.0),), ("roof, south",))),
    ],
)
def test_what_is_written_is_read(suffix, text, expected):
    assert read_places(text, suffix) == expected


def great_circle(one, other):
    """Haversine distance [m] of (latitude, longitude) in degrees: another formula than the one that is tested."""
    (lat1, lon1), (lat2, lon2) = (tuple(map(math.radians, place)) for place in (one, other))
    chord = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * 6_371_008.8 * math.asin(math.sqrt(chord))


@pytest.mark.parametrize("latitude", [-60.0, 0.0, 36.1, 48.0, 70.0])
@pytest.mark.parametrize("longitude", [-79.8, 11.0, 179.999])
def test_degrees_become_metres_within_a_thousandth(latitude, longitude):
    degrees = [(latitude, longitude), (latitude + 0.004, longitude + 0.003), (latitude - 0.002, longitude + 0.006)]
    degrees = [(lat, (lon + 180) % 360 - 180) for lat, lon in degrees]  # some beyond the date line
    table = "latitude,longitude\n" + "".join(f"{lat!r},{lon!r}\n" for lat, lon in degrees)
    collection = points(*((lon, lat) for lat, lon in degrees))
    found = read_places(table, ".csv").positions_metre
    assert read_places(collection, ".geojson").positions_metre == found
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert math.dist(found[i], found[j]) == pytest.approx(great_circle(degrees[i], degrees[j]), rel=1e-3)
    east, north = found[1][0] - found[0][0], found[1][1] - found[0][1]
    assert east > 0
    assert north > 0
    assert sum(y for _, y in found) == pytest.approx(0, abs=1e-6)


def test_geojson_takes_heights_and_names():
    text = points([11.0, 48.0, 512.0], [11.001, 48.0, 514.0], names=("roof", 7))
    found = read_places(text, ".json")
    assert found.names == ("roof", "7")
    halves = points([11.0, 48.0], names=("\ud800",))
    assert read_places(halves, ".geojson").names == ("?",)
    assert found.positions_metre[1][0] - found.positions_metre[0][0] == pytest.approx(74.4, abs=0.1)


# what is wrong with the content of a file: its suffix, its text, and words of the sentence
WRONG = [
    (".csv", "", "expected at least one place, actual number 0"),
    (".csv", "x_metre,y_metre\n", "expected at least one place, actual number 0"),
    (".csv", "x_metre,name\n1,a\n", "expected columns x_metre and y_metre, or latitude and longitude, actual"),
    (".csv", "x_metre;y_metre\n1.5;2\n3,5;4\n", "expected one decimal sign in all lines, actual '1.5' in line 2 and"),
    (".csv", "x_metre,y_metre,latitude,longitude\n1,2,3,4\n", "not both, actual columns x_metre, y_metre, latitude"),
    (".csv", "x_metre,y_metre,x_metre\n1,2,3\n", "every column once, actual columns x_metre, y_metre, x_metre"),
    (".csv", "x_metre,y_metre\n1,2\n3,north\n", "expected a number for y_metre in line 3, actual value 'north'"),
    (".csv", "x_metre,y_metre\n1,2\n3\n", "expected a number for y_metre in line 3, actual value missing"),
    (".csv", "x_metre,y_metre\n1,2,3\n", "expected 2 values in line 2, as in the first, actual number of values 3"),
    (".csv", "x_metre,y_metre\n1,nan\n", "expected a number for y_metre in line 2, actual value 'nan'"),
    (".csv", "x_metre,y_metre\n1,1e300\n", "expected a number from -1e+09 to 1e+09 for y_metre in line 2"),
    (".csv", 'x_metre,y_metre\n"1,2\n', "expected a table of comma-separated values, actual"),
    (
        ".csv",
        "latitude,longitude\n90.5,3\n",
        "from -90 to 90 for latitude in line 2, actual value 90.5; are latitude",
    ),
    (".csv", "latitude,longitude\n48,180.5\n", "from -180 to 180 for longitude in line 2, actual value 180.5"),
    (".csv", "x_metre,y_metre\n1,2\n3,4\n1,2\n", "expected places that differ, actual: lines 2 and 4 are the same"),
    (".csv", 'x_metre,y_metre\n1,"2"3\n', "expected a table of comma-separated values, actual"),
    (".geojson", "{", "expected GeoJSON, actual"),
    (".geojson", "[1, 2]", "expected a FeatureCollection, actual value [1, 2]"),
    (".geojson", '{"type": "Point", "coordinates": [1, 2]}', "expected a FeatureCollection, actual type 'Point'"),
    (".geojson", '{"type": "FeatureCollection"}', "expected a list of features, actual value missing"),
    (".geojson", '{"type": "FeatureCollection", "features": []}', "expected at least one place, actual number 0"),
    (".geojson", '{"type": "FeatureCollection", "features": [3]}', "expected a Point in feature 0, actual value 3"),
    (
        ".geojson",
        points([1, 2]).replace("Point", "Polygon"),
        "expected a Point in feature 0, actual type 'Polygon'",
    ),
    (".geojson", points([1, 2], [3]), "expected longitude and latitude in feature 1, actual value [3]"),
    (".geojson", points([1, 2], ["a", 3]), "expected a number for longitude in feature 1, actual value 'a'"),
    (".geojson", points([1, 2], [True, 3]), "expected a number for longitude in feature 1, actual value True"),
    (".geojson", points([1, 2], [3, 95]), "from -90 to 90 for latitude in feature 1, actual value 95"),
    (".geojson", points([1, 2], [3, float("nan")]), "expected a number for latitude in feature 1, actual value nan"),
    (".geojson", points([1, 2], [1, 2]), "expected places that differ, actual: features 0 and 1 are the same"),
    (".geojson", "[" * 100_000, "expected GeoJSON, actual"),
    (".txt", "1 2", "expected a name that ends in .csv, .geojson or .json, actual ending '.txt'"),
    ("", "1 2", "actual ending ''"),
]


@pytest.mark.parametrize(("suffix", "text", "said"), WRONG, ids=lambda part: str(part)[:40])
def test_every_wrong_file_is_one_sentence(suffix, text, said):
    with pytest.raises(TableError) as caught:
        read_places(text, suffix)
    assert said in str(caught.value)
    assert str(caught.value).startswith("expected ")
    assert ", actual" in str(caught.value)
    assert "\n" not in str(caught.value)


# scenarios with places


def scenario_in(folder, network, *, name="study.toml"):
    (folder / name).write_text(f"[network]\n{network}\n", encoding="utf-8")
    return Scenario.load(folder / name)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "study" / "data").mkdir(parents=True)
    (tmp_path / "study" / "data" / "places.csv").write_text(CSV, encoding="utf-8-sig")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "study"


def test_positions_say_how_many_devices_there_are_and_where(folder):
    inline = Scenario.parse({"network": {"positions_metre": METRES, "names": NAMES}})
    assert (inline.network.topology, inline.network.devices) == ("places", 3)
    from_file = scenario_in(folder, "places_file = 'data/places.csv'")
    assert from_file.network == inline.network
    assert from_file.network.places_file is None
    topology = build_topology(inline)
    assert topology.position_metre.tolist() == [list(place) for place in METRES]
    assert topology.edge_metre.tolist() == [100.0, 100.0, 120.5, 120.5]


def test_a_file_is_in_the_scenario_from_the_moment_it_is_read(folder):
    """What a run's folder keeps is whole: the file may go."""
    before = scenario_in(folder, "places_file = 'data/places.csv'")
    (folder / "data" / "places.csv").unlink()
    assert Scenario.parse(before.as_dict()) == before
    assert build_topology(before).num_edges == 4


def test_another_content_is_another_job_and_another_name_is_not(folder):
    first = scenario_in(folder, "places_file = 'data/places.csv'")
    (folder / "copy.csv").write_text(CSV.replace("roof", "attic"), encoding="utf-8")
    renamed = scenario_in(folder, "places_file = 'copy.csv'")
    assert Job(first).key() == Job(renamed).key()
    (folder / "copy.csv").write_text(CSV.replace("120.5", "120.6"), encoding="utf-8")
    moved = scenario_in(folder, "places_file = 'copy.csv'")
    assert len({Job(one).key("plan") for one in (first, renamed, moved)}) == 2


def test_places_replace_the_graph_of_any_scenario(folder):
    changed = Scenario.load("ring10").override({"network.places_file": str(folder / "data" / "places.csv")})
    assert (changed.network.topology, changed.network.devices, changed.network.names) == ("places", 3, NAMES)
    again = changed.override({"network.positions_metre": [[0, 0], [1, 1]]})
    assert (again.network.devices, again.network.names) == (2, None)
    back = changed.override({"network.positions_metre": None, "network.names": None, "network.topology": "ring"})
    assert build_topology(back).num_edges == 6


@pytest.mark.parametrize(
    ("network", "field", "said"),
    [
        ("places_file = 'none.csv'", "network.places_file", "expected a readable text file, actual file"),
        ("places_file = 5", "network.places_file", "expected text, actual value 5"),
        ("places_file = 'data'", "network.places_file", "expected a readable text file"),
        ("places_file = 'data/bad.csv'", "network.places_file", "expected a number for y_metre in line 2"),
        (
            "places_file = 'data/places.csv'\npositions_metre = [[1, 2]]",
            "network.positions_metre",
            "expected a value here or in network.places_file, not in both, actual number 2",
        ),
        (
            "places_file = 'data/places.csv'\ndevices = 4",
            "network.devices",
            "expected 3, one per place, actual value 4",
        ),
        ("topology = 'places'", "network.positions_metre", "or network.places_file, actual value missing"),
        ("topology = 'places'\npositions_metre = []", "network.positions_metre", "a list that is not empty"),
        ("topology = 'ring'\npositions_metre = [[1, 2]]", "network.positions_metre", "actual topology 'ring'"),
        ("topology = 'ring'\nnames = ['a']", "network.names", "actual topology 'ring'"),
        ("topology = 'ring'\nlinks = 'radius'", "network.links", "actual topology 'ring'"),
        ("positions_metre = [[1, 2], [1]]", "network.positions_metre.1.1", "actual value missing"),
        ("positions_metre = [[1, 2], [1, 2, 3]]", "network.positions_metre.1", "a list of 2 values"),
        ("positions_metre = [[1, 2], [1, 'a']]", "network.positions_metre.1.1", "a number, actual value 'a'"),
        ("positions_metre = [[1, 2], [1, 1e12]]", "network.positions_metre.1.1", "less than or equal to 1000000000"),
        (
            "positions_metre = [[1, 2], [3, 4], [1, 2]]",
            "network.positions_metre.2",
            "[1.0, 2.0], where device 0 stands",
        ),
        ("positions_metre = [[1, 2], [3, 4]]\nnames = ['a']", "network.names", "expected 2 names, one per device"),
        ("positions_metre = [[1, 2]]\nlinks = 'list'", "network.edges", "actual value missing"),
        (
            "positions_metre = [[1, 2], [3, 4]]\nlinks = 'radius'\nedges = [[0, 1]]",
            "network.edges",
            "expected a value with network.links = 'list' only, actual links 'radius'",
        ),
        ("positions_metre = [[1, 2]]\nbudget_error = 1.0", "network.budget_error", "less than 1, actual value 1"),
    ],
)
def test_wrong_places_of_a_scenario_are_one_sentence(folder, network, field, said):
    (folder / "data" / "bad.csv").write_text("x_metre,y_metre\n1,b\n", encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        scenario_in(folder, network)
    assert caught.value.field == field
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_example_of_the_docs_is_a_connected_farm():
    farm = Path(__file__).parents[1] / "examples" / "places"
    scenario = Scenario.load(farm / "farm.toml")
    topology = build_topology(scenario)
    assert scenario.network.names[:2] == ("house", "barn")
    assert (topology.num_devices, topology.num_edges) == (12, 44)
    assert 100 < topology.edge_metre.max() < 150


def test_a_wrong_file_ends_the_command_line_with_code_2(folder, call):
    (folder / "data" / "bad.csv").write_text("x_metre,y_metre\n1,b\n", encoding="utf-8")
    file = folder / "data" / "bad.csv"
    code, printed, told = call("scenario", "validate", "tiny", "--set", f"network.places_file={file}")
    assert (code, printed) == (2, "")
    assert told == "error: network.places_file: expected a number for y_metre in line 2, actual value 'b'\n"
