"""Radios, boards and storages: numbers of data sheets that stand in for fields of a scenario.

A part is a small TOML file of `scenario/radios`, `scenario/boards` or `scenario/storages`: a new one is a new file.
A scenario that names a radio or board, of the package or the user's own, gets its numbers in every field that it does
not set itself; the name is not kept, so that a scenario needs no other file. The name of a storage is kept.
"""

import math
from collections.abc import Mapping
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from heliomesh.common import catalog
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.files import PART_FIELDS, parsed, read_text
from heliomesh.scenario.section import ConverterEfficiency, Decay, Positive, Section, Share, Vector, validated

Dbm = Annotated[float, Field(ge=-300, le=100)]


class Sheet(Section):
    """What all parts have."""

    title: str
    source: dict[str, str] = Field(description="the document with its revision, and the place of each number in it")


class RadioSheet(Sheet):
    """Currents of a radio at one supply voltage and one bit rate."""

    supply_volt: Positive
    bit_per_second: Positive
    send_dbm: Annotated[tuple[Dbm, ...], Field(strict=False, min_length=1)] = Field(
        description="radiated powers [dBm], rising"
    )
    send_milliampere: Vector = Field(description="current while sending at each of them [mA]")
    receive_milliampere: Positive | None = Field(None, description="current while listening [mA]")
    sleep_microampere: Positive | None = Field(None, description="current while asleep, with a timer running [µA]")
    wake_microjoule: Positive | None = Field(None, description="energy of waking up [µJ]")
    sensitivity_dbm: Dbm | None = Field(None, description="received power at which sensitivity_error is met [dBm]")
    sensitivity_error: Annotated[float, Field(gt=0, lt=1)] | None = Field(None, description="packet error rate there")


class BoardSheet(Sheet):
    """A computer that trains."""

    active_watt: Positive = Field(description="power while it computes [W]")
    flop_per_second: Positive = Field(description="sustained floating-point operations per second")


class StorageSheet(Sheet):
    """What a battery or capacitor and its converters lose."""

    charge_efficiency: Share = Field(description="share of the harvest that is stored")
    leak_per_day: Decay = Field(description="share of the stored energy that a day takes")
    converter_efficiency: ConverterEfficiency


_KINDS: dict[str, type[Sheet]] = {"radio": RadioSheet, "board": BoardSheet, "storage": StorageSheet}


def names(kind: str) -> list[str]:
    """Names of the parts that come with the package; the kind is "radio", "board" or "storage"."""
    entries = (entry.name for entry in _folder(kind).iterdir())
    return sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml"))


def read(kind: str, name: object) -> Any:
    """The sheet of a name, or of the user's own ``.toml`` file; raises ScenarioError."""
    field, known = f"energy.{kind}", names(kind)
    if isinstance(name, str) and name.endswith(".toml"):
        text = read_text(field, Path(name))
    elif isinstance(name, str) and name in known:
        text = (_folder(kind) / f"{name}.toml").read_text(encoding="utf-8")
    else:
        hint = catalog.nearest(str(name), known)
        raise ScenarioError(field, f"one of {', '.join(known)} or a .toml file", f"value {name!r:.60}{hint}")
    part = validated(_KINDS[kind], parsed(field, text, f"file {name!r}"), field)
    if isinstance(part, RadioSheet):
        _check(part)
    return part


def _folder(kind: str) -> Any:
    return files("heliomesh") / "scenario" / f"{kind}s"


def _check(radio: RadioSheet) -> None:
    powers, currents = radio.send_dbm, radio.send_milliampere
    expected = f"one value for each of the {len(powers)} in send_dbm"
    actual = f"number of values {len(currents)}"
    refuse(len(currents) != len(powers), "energy.radio.send_milliampere", expected, actual)
    falling = any(low >= high for low, high in pairwise(powers))
    refuse(falling, "energy.radio.send_dbm", "rising powers", f"value {list(powers)}")
    missing = [name for name in ("sensitivity_dbm", "sensitivity_error") if getattr(radio, name) is None]
    if len(missing) == 1:
        expected = "sensitivity_dbm and sensitivity_error together"
        raise ScenarioError(f"energy.radio.{missing[0]}", expected, "value missing")


def radio_numbers(radio: RadioSheet) -> dict[str, dict[str, Any]]:
    """Fields of a scenario, by section, that a radio sets: powers [W] = volt · ampere, and P = 1 mW · 10^(dBm/10)."""
    drawn = [radio.supply_volt * current / 1e3 for current in radio.send_milliampere]
    energy: dict[str, Any] = {
        "powers_watt": [0.0, *map(_watt, radio.send_dbm)],
        "consumed_watt": [0.0, *drawn],
        "transmit_second": "bits",
        "bit_per_second": radio.bit_per_second,
        "control_bit_per_second": radio.bit_per_second,
        "control_watt": drawn[-1],
        "receive_watt": radio.receive_milliampere and radio.supply_volt * radio.receive_milliampere / 1e3,
        "sleep_watt": radio.sleep_microampere and radio.supply_volt * radio.sleep_microampere / 1e6,
        "wake_joule": radio.wake_microjoule and radio.wake_microjoule / 1e6,
    }
    link = {}
    if radio.sensitivity_dbm is not None and radio.sensitivity_error is not None:
        # σ² at which the waterfall of φ = 1 meets the sensitivity S: −S ln(1 − error)
        link["noise_watt"] = -_watt(radio.sensitivity_dbm) * math.log1p(-radio.sensitivity_error)
    return {"energy": {name: value for name, value in energy.items() if value is not None}, "link": link}


def _watt(dbm: float) -> float:
    return float(10 ** (dbm / 10) / 1e3)


def _numbers(kind: str, name: object) -> dict[str, dict[str, Any]]:
    """Fields of a scenario, by section, that a radio or board sets."""
    part = read(kind, name)
    if kind == "radio":
        return radio_numbers(part)
    computing = {"compute_watt": part.active_watt, "flop_per_second": part.flop_per_second, "compute_second": "flop"}
    return {"energy": {"compute_joule": None, **computing}}  # an energy given before does not count any more


def filled(data: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario's data with numbers in place of its radio and board, wherever no others are given."""
    whole = dict(data)
    if not isinstance(whole.get("energy"), Mapping):
        return whole
    for kind in PART_FIELDS:
        energy = dict(whole["energy"])
        name, whole["energy"] = energy.pop(kind, None), energy
        for section, numbers in ({} if name is None else _numbers(kind, name)).items():
            given = whole.get(section, {})
            whole[section] = numbers | dict(given) if isinstance(given, Mapping) else given
    return whole


def forget(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Take the numbers out of a scenario's data that a new radio or board among the changes brings."""
    for kind in PART_FIELDS:
        if f"energy.{kind}" in changes:
            for section, numbers in _numbers(kind, changes[f"energy.{kind}"]).items():
                for field in numbers:
                    data[section].pop(field, None)
