"""Replay of a recorded harvest series, from the scenario itself or from a text file with one value per line."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from heliomesh.physics.harvesting import HarvestReplay, replay
from heliomesh.scenario import PerDeviceNonNegative, Scenario, ScenarioError, Section, Vector, per_device


class Settings(Section):
    """The series in joules per slot; exactly one of ``joule`` and ``file``."""

    per_device: ClassVar[tuple[str, ...]] = ("scale",)
    source: Literal["trace"]
    joule: Vector | None = None
    file: str | None = Field(None, description="text file, one number per line")
    start: Annotated[int, Field(ge=0)] | Literal["random"] = Field(
        "random", description="'random': each device starts anywhere; a number: all start there, and plans know it"
    )
    scale: PerDeviceNonNegative = 1.0


def build(settings: Settings, scenario: Scenario) -> HarvestReplay:
    """Replay of the series around its end."""
    if (settings.joule is None) == (settings.file is None):
        given = "neither" if settings.joule is None else "both"
        raise ScenarioError("harvest.joule", f"expected either harvest.joule or harvest.file, actual: {given}")
    series = _read(settings.file) if settings.file is not None else np.array(settings.joule)
    if series.min() < 0:
        raise ScenarioError("harvest.joule", f"expected energies of at least 0, actual lowest value {series.min():g}")
    start = None if settings.start == "random" else int(settings.start)
    return replay(series, per_device(settings.scale, scenario.network.devices), scenario.slots, start)


def _read(file: str) -> npt.NDArray[np.float64]:
    values = []
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError("harvest.file", f"expected a readable text file, actual: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values.append(float(line))
        except ValueError:
            values.append(np.nan)
        if not np.isfinite(values[-1]):
            raise ScenarioError("harvest.file", f"expected a number in line {number}, actual value {line.strip()[:40]!r}")
    if not values:
        raise ScenarioError("harvest.file", f"expected at least one number, actual file {file!r} is empty")
    return np.array(values)
