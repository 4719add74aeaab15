"""Scenario files, `--set` overrides and planner options: valid ones with changes, from harmless to absurd."""

from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from heliomesh.common import catalog
from heliomesh.planning import PLANNER_CATALOG, planner_names
from heliomesh.scenario.files import shipped
from heliomesh.scenario.scenario import Scenario
from tests.fuzz.mutation import NUMBERS, Rng, spoiled_text, spoiled_tree, value

# Scenarios between these and the limits of the fields are valid and merely large: they would only take time.
_SIZES = (1, 2, 3, 4, 5, 6, 9, 0, -1, 4097, 10_000_001, 2**63)
_SMALL_OR_REFUSED = tuple(size for size in _SIZES if size != 4097)  # one too many for battery levels only
_SIZE_FIELDS = (
    "devices",
    "slots",
    "rows",
    "degree",
    "levels",
    "battery_levels",
    "local_steps",
    "batch",
    "max_degree",
)

_HARVESTS: tuple[dict[str, Any], ...] = (
    {"source": "table", "joule": [0.0, 1.0, 2.0], "prob": [0.4, 0.4, 0.2], "scale": 1.0},
    {
        "source": "markov",
        "joule": [[0.0, 0.5], [2.0, 1.0]],
        "prob": [[0.5, 0.5], [0.25, 0.75]],
        "kernel": [[0.9, 0.1], [0.2, 0.8]],
    },
    {"source": "trace", "joule": [0.0, 0.5, 1.5, 3.0], "start": 0},
    {"source": "trace", "joule": [0.0, 0.5, 1.5, 3.0], "start": "random"},
    {"source": "solar"},
    {"source": "solar", "law": "time-of-day", "hours": [5.0, 20.0], "month": 1},
    {"source": "solar", "data": "clear-sky", "latitude": 48.0, "longitude": 11.0, "law": "trace"},
)
_CHANNELS: tuple[dict[str, Any], ...] = (
    {"source": "table", "gains": [0.3, 1.5], "kernel": [[0.8, 0.2], [0.2, 0.8]], "state": "receiver"},
    {"source": "table", "gains": [0.0, 2.0], "kernel": [[0.0, 1.0], [1.0, 0.0]], "state": "link"},
    {"source": "rayleigh", "levels": 4, "doppler_slot": 0.05, "state": "reciprocal"},
)
_NETWORKS: tuple[dict[str, Any], ...] = (
    {"topology": "ring", "devices": 4},
    {"topology": "edges", "devices": 4, "edges": [[0, 1], [1, 2], [2, 3]]},
    {"topology": "grid", "devices": 6, "rows": 2},
    {"topology": "star", "devices": 4, "mixing": "lazy-metropolis"},
    {"topology": "regular", "devices": 6, "degree": 3},
    {"topology": "geometric", "devices": 6, "mean_degree": 3.0, "placement": "jittered"},
    {"topology": "complete", "devices": 3},
    {"topology": "erdos-renyi", "devices": 6, "mean_degree": 3.0},
    {"devices": 3, "positions_metre": [[0.0, 0.0], [90.0, 0.0], [90.0, 100.0]], "names": ["a", "b", "c"]},
    {"devices": 3, "positions_metre": [[0.0, 0.0], [9.0, 0.0], [9.0, 1.0]], "edges": [[0, 1], [1, 2]]},
    {"devices": 2, "positions_metre": [[0.0, 0.0], [9.0, 0.0]], "links": "budget", "budget_error": 0.5},
)


def valid_data(rng: Rng) -> dict[str, Any]:
    """Nested data of a small valid scenario."""
    network = dict(_pick(rng, _NETWORKS))
    devices = network["devices"]
    return {
        "name": "fuzz",
        "seed": int(rng.integers(5)),
        "slots": int(rng.integers(1, 6)),
        "network": network,
        "channel": {**_pick(rng, _CHANNELS), "gain": _per_device(rng, devices, 1.0)},
        "link": {
            "waterfall": float(10.0 ** rng.uniform(-6, 3)),
            "noise_watt": _per_device(rng, devices, 0.3),
            "half_duplex": bool(rng.random() < 0.5),
            "path_loss": ["none", "log-distance"][rng.integers(2)],
        },
        "energy": {
            "powers_watt": [0.0, 1.0, 2.0],
            "transmit_second": 1.0,
            "slot_second": 1.0,
            "compute_joule": _per_device(rng, devices, 1.0),
            "actions": ["coupled", "separate"][rng.integers(2)],
            "train_only": bool(rng.random() < 0.5),
            "capacity_joule": _per_device(rng, devices, 3.0),
            "battery_levels": int(rng.integers(1, 7)),
            "initial": ["uniform", "uniform-grid", 0.5][rng.integers(3)],
            **({} if rng.random() < 0.5 else _storage(rng, devices)),
        },
        "harvest": {**_pick(rng, _HARVESTS)},
        "cost": {"idle_penalty": float(rng.random())},
        "learning": {"local_steps": 2, "batch": 8, "learning_rate": 0.05},
    }


def _storage(rng: Rng, devices: int) -> dict[str, Any]:
    """Losses, and what every slot drains."""
    share = float(rng.uniform(0.1, 1))
    return {
        "storage": ["ideal", "li-ion", "supercapacitor"][rng.integers(3)],
        "charge_efficiency": _pick(rng, (1.0, share, rng.uniform(0.1, 1, devices).tolist())),
        "leak_per_day": float(_pick(rng, (0.0, 0.5, 0.999999))),
        "converter_efficiency": _pick(rng, (share, [[1e-6, share], [1.0, 1.0]])),
        "receive_watt": _per_device(rng, devices, 0.1),
        "listen_second": float(_pick(rng, (0.0, 0.5, 1.0))),
        "sleep_watt": _per_device(rng, devices, 0.01),
        "wake_joule": 0.05,
    }


def changed_data(rng: Rng) -> dict[str, Any]:
    """A valid scenario of which up to four values were replaced, some only by other extremes of their kind."""
    data = valid_data(rng)
    for _ in range(rng.integers(0, 5)):
        if rng.random() < 0.5:
            section = data.get(_pick(rng, ("network", "channel", "link", "energy", "harvest", "cost")))
            if isinstance(section, dict) and section:
                field = _pick(rng, list(section))
                section[field] = _extreme(rng, field, section[field])
        else:
            data = spoiled_tree(rng, data)
            if not isinstance(data, dict) or not all(data.get(key) for key in ("network", "channel", "energy")):
                break
    return data


def _extreme(rng: Rng, field: str, before: Any) -> Any:
    """Another value of the same kind."""
    if field in _SIZE_FIELDS:
        return int(_pick(rng, _SIZES if field == "battery_levels" else _SMALL_OR_REFUSED))
    if isinstance(before, list):
        return [_extreme(rng, field, entry) for entry in before]
    if isinstance(before, float):
        return float(_pick(rng, NUMBERS)) if rng.random() < 0.3 else float(10.0 ** rng.uniform(-12, 12))
    return value(rng) if rng.random() < 0.3 else before


def scenario_file(rng: Rng, originals: Path, place: Path) -> list[str]:
    """A scenario file, as data that do not fit or as text that was damaged."""
    file = place / "scenario.toml"
    if rng.random() < 0.3:
        file.write_bytes(spoiled_text(rng, _shipped_text(_pick(rng, shipped()))))
        return ["scenario", _pick(rng, ("validate", "show")), str(file)]
    data = changed_data(rng)
    try:
        text = tomli_w.dumps(data)
    except (TypeError, ValueError, AttributeError):  # TOML has no null and no table of another kind
        text = str(data)
    file.write_bytes(text.encode("utf-8", "replace"))
    return _command(rng, str(file))


def _command(rng: Rng, scenario: str) -> list[str]:
    if rng.random() < 0.4:
        return ["scenario", _pick(rng, ("validate", "show")), scenario]
    quick = ("uncoordinated", "uncoordinated", "battery_threshold", "skiptrain", "myopic", "prices", "receiver")
    planner = _pick(rng, (*quick, "centralized"))
    command = ["simulate", scenario, planner, "--episodes", "2", "--json"]
    if planner == "centralized":
        command += ["-o", "memory_gib=0.5"]  # below the worker's limit, so that it is the planner that refuses
    return command + (["--dtype", "float32"] if rng.random() < 0.2 else [])


def override(rng: Rng, originals: Path, place: Path) -> list[str]:
    """One to three texts for `--set` on a shipped scenario."""
    scenario = _pick(rng, shipped())
    given = [part for _ in range(rng.integers(1, 4)) for part in ("--set", _assignment(rng, scenario))]
    return ["scenario", _pick(rng, ("validate", "show")), scenario, *given]


def _assignment(rng: Rng, scenario: str) -> str:
    path, before = _leaves(scenario)[rng.integers(len(_leaves(scenario)))]
    new = value(rng) if rng.random() < 0.6 else _extreme(rng, path.rpartition(".")[2], before)
    text = f"{path}={_as_toml(rng, new)}"
    if path.rpartition(".")[2] in _SIZE_FIELDS:
        text = f"{path}={_pick(rng, (*_SMALL_OR_REFUSED, '1.0', 'true', '[]', ''))}"
    if rng.random() < 0.2:
        text = spoiled_text(rng, text.removesuffix("\0")).decode("utf-8", "replace")
    # a shell cannot pass a null character, and sizes between small and refused would only take time
    return text.replace("\0", "") if not _is_large(text) else "slots=0"


def _is_large(text: str) -> bool:
    path, _, raw = text.partition("=")
    return path.rpartition(".")[2].strip() in _SIZE_FIELDS and raw.strip() not in {str(size) for size in _SIZES}


def _as_toml(rng: Rng, new: Any) -> str:
    try:
        text = tomli_w.dumps({"v": new}).partition("=")[2].strip() if not isinstance(new, dict) else str(new)
    except (TypeError, ValueError):
        text = str(new)
    return text if rng.random() < 0.8 else str(new)


def option(rng: Rng, originals: Path, place: Path) -> list[str]:
    """A planner with options that it has, at any value, and sometimes with others."""
    planner = _pick(rng, planner_names())
    fields = catalog.find(PLANNER_CATALOG, planner).Options.model_fields
    given = []
    for _ in range(rng.integers(1, 3)):
        name = _pick(rng, [*fields, "hops"])
        if rng.random() < 0.5 and name in fields:
            given.append(f"{name}={_as_toml(rng, _near(rng, fields[name].default))}")
        else:
            given.append(f"{name}={_as_toml(rng, value(rng))}")
    texts = [part for text in given for part in ("-o", text.replace("\0", ""))]
    small = ["--set", "slots=2", "--set", "network.devices=3", "--set", "energy.battery_levels=2"]
    return ["plan", "tiny", planner, "--json", *texts, *small]


def _near(rng: Rng, before: Any) -> Any:
    """A value like an option's default."""
    if isinstance(before, bool):
        return not before
    if isinstance(before, int):
        return int(_pick(rng, (0, 1, 2, 3, 5, before + 1)))
    return float(10.0 ** rng.uniform(-9, 9)) if isinstance(before, float) else before


def _pick(rng: Rng, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _per_device(rng: Rng, devices: int, typical: float) -> float | list[float]:
    return typical if rng.random() < 0.7 else (typical * rng.uniform(0.2, 2.0, devices)).tolist()


@cache
def _shipped_text(name: str) -> str:
    return Scenario.load(name).to_toml()


@cache
def _leaves(name: str) -> list[tuple[str, Any]]:
    """Dotted paths of all values of a shipped scenario."""
    data = Scenario.load(name).as_dict()
    plain = [(key, entry) for key, entry in data.items() if not isinstance(entry, dict)]
    sections = [(key, entry) for key, entry in data.items() if isinstance(entry, dict)]
    return plain + [(f"{key}.{field}", entry[field]) for key, entry in sections for field in entry]
