"""An agent's folder: all that `heliomesh device deploy` gives to a device, and all that the device keeps.

agent.toml            who it is, where its neighbours are, its clock and its sensors
scenario.toml         the network's settings
plan.json             its own tables of the plan
samples.safetensors   its own training samples
own.pem, own.key      its certificate and private key
new.key, own.csr      a key that waits for its certificate, and the request for it
authority.pem         the authority that signed all certificates
roster.txt            the network's members by their keys, signed by the authority
memory/               checkpoints
slots.jsonl           what happened in each slot; slots.old.jsonl has earlier ones, and the earliest are dropped
model.safetensors     its model after the last slot
"""

import tomllib
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import Field, TypeAdapter, ValidationError

from heliomesh.common.durable import file_sha256, read_tensors, write_bytes, write_text
from heliomesh.field.agents import identity
from heliomesh.field.agents.identity import ROSTER, WATCHER, Identity, Members, Roster
from heliomesh.field.agents.tables import OwnPlan, fits
from heliomesh.field.fleet.bidder import OwnBids
from heliomesh.field.fleet.view import View, view_of
from heliomesh.field.living.conditions import Conditions, books_under, problem_under
from heliomesh.interop.export_tables import PlanTables
from heliomesh.learning.run import TrainingError
from heliomesh.learning.stacked import Samples
from heliomesh.model.problem import Problem, build
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.files import read_text
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.section import Edge, NonNegative, Positive, Section, validated

_Settings = TypeVar("_Settings", bound=Section)
Index = Annotated[int, Field(ge=0)]


class ClockSettings(Section):
    """When slots begin."""

    kind: Literal["wall", "ready"] = Field(
        "wall", description="wall: by the time of day; ready: as soon as all neighbours are, for tests"
    )
    start_second: NonNegative = Field(0.0, description="when slot 0 begins, seconds since 1970")
    slot_second: Positive = Field(10.0, description="length of a slot [s]")
    guard_second: NonNegative = Field(0.5, description="silence at both ends of a slot [s]: clocks may differ by it")
    patience_second: Positive = Field(60.0, description="ready: how long to wait for a neighbour that is alive [s]")


class SensorSettings(Section):
    """What measures battery, harvest and channel."""

    kind: str = Field("simulated", description="simulated, or a function of your own as module:name")
    seed: Index = Field(0, description="simulated: seed of the random numbers")
    episode: Index = Field(0, description="simulated: number of the episode")
    harvest_factor: NonNegative = Field(1.0, description="simulated: on harvests, to try what re-planning does")
    options: dict[str, Any] = Field({}, description="settings of a sensor of your own")

    def check(self) -> "SensorSettings":
        """Itself; raises ScenarioError for a kind that is none."""
        known = self.kind == "simulated" or ":" in self.kind
        refuse(not known, "sensor.kind", "simulated or module:name", f"value {self.kind!r}")
        return self


class Belief(Section):
    """How the network differs from its scenario, as the plan in force has it."""

    links_off: tuple[Edge, ...] = Field((), strict=False, description="links that are gone")
    away: tuple[Index, ...] = Field((), strict=False, description="devices that are gone")

    @classmethod
    def of(cls, conditions: Conditions) -> "Belief":
        """As it is written down."""
        return cls(links_off=tuple(sorted(conditions.links_off)), away=tuple(sorted(conditions.away)))

    @property
    def conditions(self) -> Conditions:
        """As planners read it."""
        return Conditions(links_off=frozenset(self.links_off), away=frozenset(self.away))


class SentPlan(Section):
    """A plan as the operator sends it."""

    part: OwnPlan  # of one device
    belief: Belief


class AgentSettings(Section):
    """One agent."""

    device: Index = Field(description="the device's number in the network")
    network: str = Field(description="the network's name, the same in all folders of one deployment")
    plan: str = Field(description="sha256 of the whole plan in force, which all devices must share")
    plan_file: str = Field("plan.json", description="the file with the device's own tables")
    plan_sha256: str = Field(description="sha256 of that file")
    plan_second: NonNegative = Field(0.0, description="when a later plan was sent, seconds since 1970; 0: the first")
    belief: Belief = Field(Belief(), description="what that plan believes of the network")
    hops: Index = Field(description="how far devices tell what they measure")
    listen: str = Field(description="where the agent listens, host:port")
    neighbours: dict[str, str] = Field(description="where neighbours listen, by their number")
    training_seed: Index = Field(description="draws the common first weights and the device's minibatches")
    strategy: str = Field("auto", description="how local steps are executed")
    num_classes: Annotated[int, Field(ge=2)] = Field(description="classes of the task")
    journal_bytes: Annotated[int, Field(ge=1)] = Field(
        16 << 20, description="size at which slots.jsonl becomes slots.old.jsonl, which is dropped [B]"
    )
    clock: ClockSettings = ClockSettings()
    sensor: SensorSettings = SensorSettings()


class AgentFolder:
    """The files of one device."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.certificate, self.key = path / "own.pem", path / "own.key"
        self.new_key = path / "new.key"  # waits for its certificate
        self.authority = path / "authority.pem"
        self.roster_file = path / ROSTER
        self.samples_file = path / "samples.safetensors"
        self.memory = path / "memory"
        self.model = path / "model.safetensors"

    @cached_property
    def settings(self) -> AgentSettings:
        """What agent.toml says; raises ScenarioError."""
        return read_settings(AgentSettings, self.path / "agent.toml")

    def write_settings(self, settings: AgentSettings) -> None:
        """Write agent.toml."""
        write_text(self.path / "agent.toml", tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True)))

    @cached_property
    def problem(self) -> Problem:
        """The network's problem."""
        return build(Scenario.load(self.path / "scenario.toml"))

    @cached_property
    def plan(self) -> PlanTables | OwnBids:
        """The device's own part of the plan; raises ScenarioError where the file was changed since."""
        source = self.path / self.settings.plan_file
        actual = file_sha256(source)
        wanted = self.settings.plan_sha256
        expected = f"the plan of this deployment, sha256 {wanted[:12]}…"
        remedy = "deploy the network again to change its plan"
        refuse(actual != wanted, self.settings.plan_file, expected, f"{actual[:12]}…; {remedy}")
        try:
            found: PlanTables | OwnBids = TypeAdapter(OwnPlan).validate_json(source.read_bytes())
        except ValidationError:
            raise ScenarioError(source.name, "expected a plan as it was deployed, actual: something else") from None
        own = self.settings.device
        refuse(not fits(found, self.problem, own), source.name, f"the part of device {own}", ": another")
        return found

    def view(self) -> View:
        """The device's knowledge of the network; what others measure travels over the links that remain."""
        settings, believed = self.settings, self.settings.belief.conditions
        whole = view_of(books_under(self.problem, believed), settings.device, settings.hops)
        routes = view_of(problem_under(self.problem, believed), settings.device, settings.hops)
        return replace(whole, distance=routes.distance, next_hop=routes.next_hop)

    def with_plan(self, plan: SentPlan, name: str, sent_second: float) -> "AgentFolder":
        """Keep another plan: its file first, then the settings that name it, so that either plan is whole."""
        target = self.path / f"plan-{name[:12]}.json"
        write_text(target, plan.part.model_dump_json() + "\n")
        change = {
            "belief": plan.belief,
            "plan": name,
            "plan_file": target.name,
            "plan_sha256": file_sha256(target),
            "plan_second": sent_second,
        }
        self.write_settings(self.settings.model_copy(update=change))
        for other in self.path.glob("plan-*.json"):
            if other != target:
                other.unlink()
        return AgentFolder(self.path)

    def samples(self) -> Samples:
        """The device's own training samples."""
        found = read_tensors(self.samples_file, TrainingError)
        return Samples(found["inputs"], found["labels"])

    def identity(self) -> Identity:
        """The device's key and certificate."""
        return identity.read_identity(self.certificate, self.key)

    def roster(self) -> Roster:
        """The network's members; raises ScenarioError where the authority did not sign them."""
        return identity.roster_of(read_text(ROSTER, self.roster_file).encode(), self.authority)

    def members(self) -> Members:
        """The operator, and the devices whose messages it may hear."""
        near = self.problem.topology.within(self.settings.device, max(self.settings.hops, 1))
        names = {WATCHER, *map(str, near)} - {str(self.settings.device)}
        return identity.members_of({name: key for name, key in self.roster().keys.items() if name in names})

    def install(self, content: bytes) -> bool:
        """Keep a renewed certificate or a newer list of members; False where the folder's own is as new.

        Raises ScenarioError for what the network's authority did not sign, or a certificate of another's key.
        """
        if content.startswith(b"-----BEGIN"):
            return self._install_certificate(content)
        newer = identity.roster_of(content, self.authority).number > self.roster().number
        if newer:
            write_bytes(self.roster_file, content)
        return newer

    def _install_certificate(self, content: bytes) -> bool:
        """A key that waited for its certificate takes the place of the one before."""
        for key in (self.key, self.new_key):
            newer = identity.newer_certificate(content, self.authority, key, self.certificate)
            if newer is None:
                continue
            if key == self.new_key:
                key.replace(self.key)
            if newer:
                write_bytes(self.certificate, content)
            return newer
        raise ScenarioError("certificate", f"expected one for the key in {self.path}, actual: for another key")

    def papers(self) -> tuple[tuple[int, int], ...]:
        """Another value whenever the certificate or the list of members was replaced."""
        found = (path.stat() for path in (self.certificate, self.roster_file) if path.exists())
        return tuple((one.st_ino, one.st_mtime_ns) for one in found)


def read_settings(kind: type[_Settings], source: Path) -> _Settings:
    """Read a TOML file of settings; raises ScenarioError."""
    try:
        data = tomllib.loads(read_text(source.name, source))
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(source.name, f"expected TOML, actual file {str(source)!r}: {error}") from None
    return validated(kind, data, source.name)
