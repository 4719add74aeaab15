"""Scenarios: reading, writing, overriding, hashing and their JSON schema."""

import json
import tomllib
import warnings
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heliomesh.common import catalog
from heliomesh.physics.channels import rayleigh, table
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.files import shipped
from heliomesh.scenario.scenario import Scenario, parse_override, sections
from heliomesh.scenario.schema import HARVEST_CATALOG, Energy, Link
from heliomesh.scenario.section import per_device

SECTIONS = {"network", "channel", "link", "energy", "harvest", "storage", "cost", "learning"}


def harvest_settings():
    return {name: catalog.find(HARVEST_CATALOG, name).Settings for name in catalog.names(HARVEST_CATALOG)}


def refused(field, action, *arguments):
    with pytest.raises(ScenarioError) as caught:
        action(*arguments)
    assert caught.value.field == field


@pytest.mark.parametrize("heading", sections())
def test_every_field_says_what_it_means(heading):
    silent = [name for name, field in sections()[heading].model_fields.items() if not field.description]
    assert not silent, f"give a description to {', '.join(silent)} of [{heading}]"


def test_every_field_outside_the_tables_says_what_it_means():
    plain = {name: field for name, field in Scenario.model_fields.items() if name not in SECTIONS}
    assert set(plain) == {"name", "seed", "slots"}
    assert all(field.description for field in plain.values())


# --- round trips ---------------------------------------------------------------------------------------------


def positive(most=1e6):
    return st.floats(1e-6, most, allow_subnormal=False) | st.integers(1, int(most))


def law(size):
    """Probabilities in sixteenths, so that they sum to exactly 1."""
    cuts = st.lists(st.integers(0, 16), min_size=size - 1, max_size=size - 1).map(sorted)
    return cuts.map(lambda inner: [(b - a) / 16 for a, b in zip([0, *inner], [*inner, 16], strict=True)])


def lists(entries, size):
    return st.lists(entries, min_size=size, max_size=size)


@st.composite
def harvest(draw):
    source = draw(st.sampled_from(["table", "markov", "trace", "solar"]))
    size = draw(st.integers(1, 3))
    joule = lists(positive(), size)
    if source == "solar":
        return {"first_day": draw(st.dates()), "month": draw(st.integers(1, 12)), "source": source}
    if source == "trace":
        return {"joule": draw(joule), "start": draw(st.integers(0, 99) | st.just("random")), "source": source}
    if source == "table":
        return {"joule": draw(joule), "prob": draw(law(size)), "source": source}
    rows = {"kernel": law(size), "joule": joule, "prob": law(size)}
    return {name: draw(lists(row, size)) for name, row in rows.items()} | {"source": source}


@st.composite
def changes(draw):
    """Valid overrides of any scenario, in any order."""
    devices = draw(st.integers(1, 6))
    each = positive() | lists(positive(), devices)
    size = draw(st.integers(1, 3))
    optional = {
        "name": st.text(),
        "seed": st.integers(0, 2**63 - 1),
        "slots": st.integers(1, 1000),
        "network.mixing": st.sampled_from(["metropolis", "lazy-metropolis"]),
        "network.max_degree": st.none() | st.integers(1, 9),
        "link.noise_watt": each,
        "link.half_duplex": st.booleans(),
        "energy.compute_joule": st.none() | each,
        "energy.cpu_hz": each,
        "cost.idle_penalty": st.floats(0, 1),
        "learning.dataset": st.text(),
    }
    powers = draw(st.lists(positive(), max_size=4, unique=True).map(sorted))
    always = {
        "network.topology": draw(st.sampled_from(["ring", "star", "complete", "grid"])),
        "network.devices": devices,
        "energy.powers_watt": [0.0, *powers],
        "energy.initial": draw(st.sampled_from(["uniform", "uniform-grid"])),
        "channel.source": "table",
        "channel.gains": draw(lists(positive(), size).filter(lambda x: len(set(x)) == len(x)).map(sorted)),
        "channel.kernel": draw(lists(law(size), size)),
    } | {f"harvest.{key}": value for key, value in draw(harvest()).items()}
    found = always | draw(st.fixed_dictionaries({}, optional=optional))
    return dict(draw(st.permutations(list(found.items()))))


def read_back(scenario):
    return Scenario.parse(tomllib.loads(scenario.to_toml()))


@pytest.mark.parametrize("name", shipped())
def test_shipped_scenarios_survive_a_round_trip(name, tmp_path):
    scenario = Scenario.load(name)
    assert scenario.name == name
    assert read_back(scenario) == scenario
    assert Scenario.parse(scenario.as_dict()) == scenario
    assert scenario.override({}) == scenario
    (tmp_path / "copy.toml").write_text(scenario.to_toml(), encoding="utf-8")
    copy = Scenario.load(tmp_path / "copy.toml")
    assert copy == scenario
    assert copy.content_hash == scenario.content_hash


@settings(deadline=None)  # a busy machine is no fault
@given(changes(), st.sampled_from(["tiny", "ring10"]))
def test_any_scenario_survives_a_round_trip(overrides, name):
    base = Scenario.load(name)
    scenario = base.override(overrides)
    assert read_back(scenario) == scenario
    assert read_back(scenario).content_hash == scenario.content_hash
    assert json.loads(json.dumps(scenario.as_dict())) == scenario.as_dict()
    for path, value in overrides.items():
        section, _, field = path.rpartition(".")
        found = getattr(getattr(scenario, section) if section else scenario, field)
        assert nested_list(found) == value


def nested_list(value):
    return [nested_list(entry) for entry in value] if isinstance(value, tuple) else value


# --- hash ----------------------------------------------------------------------------------------------------


def backwards(value):
    """The same data with the keys of every table in reverse order."""
    if isinstance(value, dict):
        return {key: backwards(value[key]) for key in reversed(value)}
    return value


@pytest.mark.parametrize("name", shipped())
def test_hash_ignores_the_order_of_keys_and_the_name(name):
    scenario = Scenario.load(name)
    turned = Scenario.parse(backwards(scenario.as_dict()))
    assert list(turned.as_dict()["network"]) == list(scenario.as_dict()["network"])
    assert turned.content_hash == scenario.content_hash
    assert scenario.override({"name": "other"}).content_hash == scenario.content_hash
    assert len(bytes.fromhex(scenario.content_hash)) == 32


def other(value):
    """A different value of about the same kind."""
    if isinstance(value, bool):
        return not value
    if value is None:
        return "set"
    return value + value[:1] if isinstance(value, tuple | str) else value + 1


@pytest.mark.parametrize("name", shipped())
def test_hash_changes_with_every_value(name):
    """Fields are changed behind the validation, so that a new one is tested the day it is added."""
    scenario = Scenario.load(name)
    hashes = [scenario.content_hash]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the serializer notices that the values are wrong
        for field in type(scenario).model_fields:
            part = getattr(scenario, field)
            if field == "name":
                continue
            if field not in SECTIONS:
                hashes.append(scenario.model_copy(update={field: other(part)}).content_hash)
                continue
            for inner in set(type(part).model_fields) - {"names"}:
                changed = part.model_copy(update={inner: other(getattr(part, inner))})
                hashes.append(scenario.model_copy(update={field: changed}).content_hash)
    assert len(hashes) > 40
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("same", [3, 3.0, [3] * 5, [3.0] * 5])
def test_hash_takes_numbers_for_what_they_are(same):
    """Whole ones, and lists in which all devices have the same."""
    tiny = Scenario.load("tiny")
    assert tiny.override({"energy.capacity_joule": same}).content_hash == tiny.content_hash
    assert tiny.override({"energy.capacity_joule": [3, 3, 3, 3, 4]}).content_hash != tiny.content_hash


def test_hash_does_not_depend_on_what_devices_are_called():
    places = Scenario.load("tiny").override({"network.positions_metre": [[0, 0], [9, 0], [9, 9]]})
    assert places.override({"network.names": ["a", "b", "c"]}).content_hash == places.content_hash


def test_hash_depends_on_the_content_of_a_file(tmp_path):
    file, copy = tmp_path / "series.txt", tmp_path / "copy.txt"
    file.write_text("1\n2\n", encoding="utf-8")
    copy.write_text("1\n2\n", encoding="utf-8")
    base = Scenario.load("tiny").override({"harvest.source": "trace", "harvest.file": str(file)})
    before = base.content_hash
    assert base.override({"harvest.file": str(copy)}).content_hash == before
    file.write_text("1\n3\n", encoding="utf-8")
    assert base.content_hash != before
    file.unlink()
    missing = base.content_hash
    assert missing not in (before, base.override({"harvest.file": "elsewhere.txt"}).content_hash)


# --- overrides -----------------------------------------------------------------------------------------------


def test_override_replaces_values_and_keeps_the_original():
    tiny = Scenario.load("tiny")
    changed = tiny.override({"network.devices": 8, "link.waterfall": 0.3, "seed": 7})
    assert (changed.network.devices, changed.link.waterfall, changed.seed) == (8, 0.3, 7)
    assert changed.link.noise_watt == tiny.link.noise_watt
    assert (tiny.network.devices, tiny.link.waterfall, tiny.seed) == (5, 1.0, 0)


def test_override_of_a_section_starts_from_its_defaults():
    changed = Scenario.load("tiny").override({"link": {"waterfall": 0.3}})
    assert changed.link == Link(waterfall=0.3)


def test_override_by_none_unsets():
    tiny = Scenario.load("tiny")
    assert tiny.energy.compute_joule == 1.0
    assert tiny.override({"energy.compute_joule": None}).energy.compute_joule is None


@pytest.mark.parametrize("backward", [False, True])
def test_a_new_source_drops_the_old_settings_in_any_order(backward):
    overrides = {"harvest.source": "trace", "harvest.joule": [1.0, 2.0], "channel.source": "rayleigh"}
    changed = Scenario.load("tiny").override(backwards(overrides) if backward else overrides)
    settings = {"source": "trace", "joule": [1.0, 2.0], "start": "random", "scale": 1.0, "sky": "independent"}
    assert changed.as_dict()["harvest"] == settings
    assert changed.channel == rayleigh.Settings()


def test_the_same_source_keeps_its_settings():
    tiny = Scenario.load("tiny")
    assert tiny.override({"harvest.source": "table", "channel.source": "table"}) == tiny


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("network.devices=20", "network.devices", 20),
        (" link.waterfall = 0.3 ", "link.waterfall", 0.3),
        ("link.noise_watt=2e-14", "link.noise_watt", 2e-14),
        ("link.half_duplex=true", "link.half_duplex", True),
        ("network.topology=ring", "network.topology", "ring"),
        ("network.topology='ring'", "network.topology", "ring"),
        ("energy.powers_watt=[0, 0.1]", "energy.powers_watt", [0, 0.1]),
        ("network.edges=[[0, 1], [1, 2]]", "network.edges", [[0, 1], [1, 2]]),
        ("harvest.first_day=2023-06-01", "harvest.first_day", date(2023, 6, 1)),
        ("cost={idle_penalty = 0.5}", "cost", {"idle_penalty": 0.5}),
        ("name=a=b", "name", "a=b"),
        ("name=", "name", ""),
        ("name=two words", "name", "two words"),
        (f"seed=1{'0' * 5000}", "seed", f"1{'0' * 5000}"),  # more digits than Python reads stay text
    ],
)
def test_set_reads_toml_or_plain_text(text, path, value):
    assert parse_override(text, "--set") == (path, value)


@pytest.mark.parametrize("text", ["network.devices", "=3", " =3", ".=3", "network.=3", ".devices=3", ""])
def test_set_needs_a_path_and_a_value(text):
    refused("--set", parse_override, text, "--set")


# --- defaults, lists, files ----------------------------------------------------------------------------------


def test_everything_has_a_default():
    scenario = Scenario.parse({})
    assert (scenario.name, scenario.seed, scenario.slots) == ("unnamed", 0, 200)
    assert scenario.channel == rayleigh.Settings()
    assert scenario.as_dict()["harvest"]["source"] == "solar"
    assert set(scenario.as_dict()) == {"name", "seed", "slots"} | SECTIONS - {"storage"}  # left out where linear
    for section in SECTIONS:
        assert Scenario.parse({section: {}}) == scenario


def test_scenarios_are_frozen():
    scenario = Scenario.load("tiny")
    for part, field in ((scenario, "seed"), (scenario.network, "devices"), (scenario.harvest, "scale")):
        with pytest.raises(ValidationError):
            setattr(part, field, 3)
    assert {scenario, Scenario.load("tiny")} == {scenario}


PER_DEVICE = [("link", "noise_watt"), ("channel", "gain"), *(("energy", field) for field in Energy.per_device)]


@pytest.mark.parametrize("kind", [Link, Energy, rayleigh.Settings, table.Settings, *harvest_settings().values()])
def test_per_device_fields_exist(kind):
    assert set(kind.per_device) <= set(kind.model_fields)


PRODUCT = {"energy.compute_joule": None, "energy.compute_watt": 1.0, "energy.compute_second": 0.1}
BESIDE = {"energy.compute_watt": PRODUCT, "energy.compute_second": PRODUCT}  # fields that need others


@pytest.mark.parametrize(("section", "field"), [*PER_DEVICE, ("harvest", "scale")])
def test_per_device_lists(section, field):
    path, values = f"{section}.{field}", [1, 2, 1.5, 2.5, 3]
    if field in ("charge_efficiency", "leak_per_day", "listen_second"):
        values = [value / 5 for value in values]  # shares, and a time within the slot
    tiny = Scenario.load("tiny").override(BESIDE.get(path, {}))
    scenario = tiny.override({path: values})
    found = getattr(getattr(scenario, section), field)
    assert found == tuple(values)
    assert all(isinstance(value, float) for value in found)
    assert read_back(scenario) == scenario
    refused(path, tiny.override, {path: values[:4]})
    refused(path, scenario.override, {"network.devices": 6})
    refused(f"{path}.3", tiny.override, {path: [0.5, 0.5, 0.5, -1, 0.5]})


def test_per_device_spreads_a_number_and_keeps_a_list():
    assert per_device(2.0, 3) == [2.0, 2.0, 2.0]
    assert per_device((1.0, 2.0), 2) == [1.0, 2.0]


def test_first_batteries_are_compared_with_capacities_device_by_device():
    base = Scenario.load("tiny").override({"network.devices": 2, "energy.capacity_joule": [2, 4]})
    assert base.override({"energy.initial": [1, 3]}).energy.initial == (1.0, 3.0)
    refused("energy.initial", base.override, {"energy.initial": [3, 1]})
    refused("energy.initial", base.override, {"energy.initial": 3})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A scenario with its series in a folder that is not the current one."""
    home = tmp_path / "study"
    (home / "data").mkdir(parents=True)
    (home / "data" / "series.txt").write_text("1\n2\n", encoding="utf-8")
    (home / "sunny.toml").write_text("[harvest]\nsource = 'trace'\nfile = 'data/series.txt'\n", encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return home


def test_file_paths_are_relative_to_the_scenario(folder):
    scenario = Scenario.load("../study/sunny.toml")
    assert scenario.harvest.file == str(folder / "data" / "series.txt")
    assert scenario == Scenario.load(folder / "sunny.toml")
    assert read_back(scenario).content_hash == scenario.content_hash


def test_absolute_file_paths_stay(folder):
    target = folder / "data" / "series.txt"
    (folder / "other.toml").write_text(f"[harvest]\nsource = 'trace'\nfile = '{target}'\n", encoding="utf-8")
    assert Scenario.load(folder / "other.toml").harvest.file == str(target)


def test_the_name_is_the_file_name_unless_given(folder):
    assert Scenario.load(folder / "sunny.toml").name == "sunny"
    (folder / "named.toml").write_text("name = 'Fine day'", encoding="utf-8")
    assert Scenario.load(folder / "named.toml").name == "Fine day"


def test_files_may_lack_the_suffix_or_begin_with_a_byte_order_mark(folder):
    (folder / "plain").write_text("slots = 3", encoding="utf-8-sig")
    assert Scenario.load(folder / "plain").slots == 3


# --- schema --------------------------------------------------------------------------------------------------


def resolved(schema, node):
    return schema["$defs"][node["$ref"].removeprefix("#/$defs/")] if "$ref" in node else node


def variants(schema, section):
    """Schemas that a section may follow, by their source (None where a section has no sources)."""
    node = schema["properties"][section]
    found = [resolved(schema, entry) for entry in node.get("anyOf", node.get("oneOf", [node]))]
    return {entry["properties"].get("source", {}).get("const"): entry for entry in found}


def references(node):
    if isinstance(node, dict):
        yield from [node["$ref"]] if "$ref" in node else []
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_schema_is_json_and_lists_every_source():
    schema = Scenario.json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert set(variants(schema, "harvest")) == set(catalog.names(HARVEST_CATALOG))
    assert set(variants(schema, "channel")) == {"rayleigh", "table"}
    assert schema["additionalProperties"] is False
    assert "required" not in schema
    assert {reference.removeprefix("#/$defs/") for reference in references(schema)} <= set(schema["$defs"])


@pytest.mark.parametrize("name", shipped())
def test_schema_knows_every_key_of_a_scenario(name):
    schema, data = Scenario.json_schema(), Scenario.load(name).as_dict()
    assert {*data, "storage"} == set(schema["properties"])
    for section in SECTIONS & set(data):
        entry = variants(schema, section)[data[section].get("source")]
        assert set(data[section]) <= set(entry["properties"])
        assert set(entry.get("required", ())) <= set(data[section])
        assert entry["additionalProperties"] is False


def test_schema_is_what_the_command_prints(call):
    code, printed, _ = call("scenario", "schema")
    assert code == 0
    assert json.loads(printed) == Scenario.json_schema()


def test_a_storage_law_is_written_out_unless_it_is_linear():
    plain = Scenario.load("tiny")
    linear, other = (plain.override({"storage.source": law}) for law in ("linear", "voltage"))
    assert (linear.content_hash, linear.as_dict()) == (plain.content_hash, plain.as_dict())
    assert other.as_dict()["storage"] == {"source": "voltage", "exponent": 1.0}
    assert other.chosen()["storage"] == {"source": "voltage"}
    assert Scenario.from_toml(other.to_toml()) == other


def test_show_prints_what_load_reads(call, tmp_path):
    printed = call("scenario", "show", "tiny", "--set", "network.devices=7")[1]
    (tmp_path / "shown.toml").write_text(printed, encoding="utf-8")
    assert Scenario.load(tmp_path / "shown.toml") == Scenario.load("tiny").override({"network.devices": 7})
