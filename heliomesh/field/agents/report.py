"""What a watcher believes of a device's line: nothing, before its size, types and ranges are checked."""

from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

from heliomesh.field.agents.folder import Index
from heliomesh.model.problem import Problem
from heliomesh.scenario.section import Fraction, NonNegative, Section

_MOST_TIMES = 100.0  # what a panel may give or a load may take, in batteries and in the law's largest harvests
_ABOVE = 1 + 1e-6  # of a full battery, for rounding

_Name = Annotated[str, Field(max_length=64)]  # a sha256
_Site = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


class Report(Section):
    """The part of a journal's line that watchers read; what else is in a line is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, strict=True)

    slot: Index
    device: Index
    plan: _Name
    channel_level: dict[_Site, Index]
    weather: Index
    battery_joule: NonNegative
    battery_after_joule: NonNegative
    power_watt: NonNegative
    trained: bool
    planned_joule: NonNegative
    measured_joule: NonNegative | None
    harvested_joule: NonNegative
    overflow_joule: NonNegative
    error_prob: tuple[Fraction, ...]
    delivered: tuple[bool, ...]


class ReportCheck:
    """What lines of each device must fit to."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._powers_watt = frozenset(problem.actions.power_watt.tolist())
        self._capacity_joule = problem.battery.capacity_joule.tolist()
        law = problem.harvest.law
        largest = law.scale * law.joule.max()
        self._most_joule = (_MOST_TIMES * (problem.battery.capacity_joule + largest)).tolist()

    def report(self, text: bytes | str, device: int | None = None) -> Report:
        """What a line says, of a device if one is given; raises ValueError with a sentence where it cannot be so."""
        try:
            found = Report.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(map(str, first["loc"])) or "line"
            raise ValueError(f"{place}: {first['msg']}") from None
        own = found.device < self._problem.num_devices and device in (None, found.device)
        fields = self._fits(found) if own else {"device": False}
        wrong = next((name for name, fits in fields.items() if not fits), None)
        if wrong is not None:
            raise ValueError(f"{wrong}: expected one that the device can have, actual {getattr(found, wrong)!r:.60}")
        return found

    def _fits(self, found: Report) -> dict[str, bool]:
        """Which fields can be what they are, by name."""
        problem, device = self._problem, found.device
        most = self._most_joule[device]
        num_edges, full = len(problem.topology.neighbours[device]), self._capacity_joule[device] * _ABOVE
        sites, levels = set(problem.sites_into(device)), len(problem.channel.kernel)
        return {
            "slot": found.slot < problem.slots,
            "channel_level": all(int(site) in sites and n < levels for site, n in found.channel_level.items()),
            "weather": found.weather < problem.harvest.law.num_weather,
            "battery_joule": found.battery_joule <= full,
            "battery_after_joule": found.battery_after_joule <= full,
            "power_watt": found.power_watt in self._powers_watt,
            "planned_joule": found.planned_joule <= full,
            "measured_joule": (found.measured_joule or 0.0) <= most,
            "harvested_joule": found.harvested_joule <= most,
            "overflow_joule": found.overflow_joule <= most,
            "error_prob": len(found.error_prob) == num_edges,
            "delivered": len(found.delivered) == num_edges,
        }
