"""Replay of a recorded harvest series: from the scenario, or from a text file with one value per line."""

from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from heliomesh.physics.harvesting import HarvestReplay, replay
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.files import read_text
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import HarvestSettings
from heliomesh.scenario.section import PerDeviceNonNegative, Vector, per_device


class Settings(HarvestSettings):
    """The series in joules per slot; exactly one of ``joule`` and ``file``."""

    per_device: ClassVar[tuple[str, ...]] = ("scale",)
    source: Literal["trace"] = Field(description="a recorded series, which begins again at its end")
    joule: Vector | None = Field(None, description="energy of every slot [J]; this or file")
    file: str | None = Field(None, description="text file, one number per line")
    start: Annotated[int, Field(ge=0, lt=2**31)] | Literal["random"] = Field(
        "random", description="'random': each device starts anywhere; a number: all there, and plans know it"
    )
    scale: PerDeviceNonNegative = Field(1.0, description="factor on the energies")


def build(settings: Settings, scenario: Scenario) -> HarvestReplay:
    """Replay of the series around its end."""
    given = [field for field in ("joule", "file") if getattr(settings, field) is not None]
    expected = "exactly one of harvest.joule and harvest.file"
    refuse(len(given) != 1, "harvest.joule", expected, f"number of them {len(given)}")
    series = _read(settings.file) if settings.file is not None else np.array(settings.joule)
    refuse(series.min() < 0, f"harvest.{given[0]}", "energies of at least 0", f"lowest value {series.min():g}")
    start = None if settings.start == "random" else int(settings.start)
    return replay(series, per_device(settings.scale, scenario.network.devices), scenario.slots, start)


def _read(file: str) -> npt.NDArray[np.float64]:
    values = []
    for number, line in enumerate(read_text("harvest.file", file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            values.append(float(line))
        except ValueError:
            values.append(np.nan)
        if not np.isfinite(values[-1]):
            raise ScenarioError("harvest.file", f"a finite number in line {number}", f"value {line.strip()[:40]!r}")
    refuse(not values, "harvest.file", "at least one number", f"file {file!r} is empty")
    return np.array(values)
