"""`heliomesh device deploy` writes a folder for each device, and `heliomesh device run` runs one of them."""

import signal
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heliomesh.commands import options as shared
from heliomesh.commands.facts import build_noted, print_facts
from heliomesh.commands.options import flattened, option
from heliomesh.commands.terminal import say, tell
from heliomesh.field.fleet.scheme import device_options
from heliomesh.planning import find_planner, make_plan
from heliomesh.scenario.errors import refuse

if TYPE_CHECKING:
    from heliomesh.field.agents.folder import ClockSettings


_USUAL_SLOT_SECOND, _GUARD_SHARE = 10.0, 0.1
DaysOption = Annotated[int, option("Days until certificates end.", min=1, max=3650)]


def check_installed() -> None:
    """Refuse where the extra is not there."""
    missing = find_spec("zenoh") is None or find_spec("cryptography") is None
    refuse(missing, "agent", "Zenoh to be installed (pip install heliomesh[agent])", ": it is not")


@dataclass(frozen=True)
class PlaceOptions:
    """Where devices are, and what they measure with."""

    at: Annotated[list[str], option("A device's machine: number=host. Repeatable.")] = field(default_factory=list)
    port: Annotated[int, option("Device i listens at this port + i.", min=1, max=65535)] = 7447
    sensor: Annotated[str, option("simulated, or your own as module:name; see agent.toml.")] = "simulated"
    seed: Annotated[int, option("Seed of training and of simulated sensors.", min=0)] = 0
    days: DaysOption = 180
    keys_on_device: Annotated[bool, option("Devices make their own: members request.", "--keys-on-device")] = False

    @property
    def hosts(self) -> dict[int, str]:
        """Machines by device."""
        return dict(_host(text) for text in self.at)


@dataclass(frozen=True)
class TimeOptions:
    """When slots begin."""

    slot_second: Annotated[float | None, option("Of a slot; default: 10, or more if packets take it.", min=0.01)] = (
        None
    )
    guard_second: Annotated[float | None, option("Silence at both ends of a slot; default: a tenth.", min=0)] = None
    start_in: Annotated[float, option("Seconds from now to the first slot.", min=0)] = 60.0
    ready: Annotated[bool, option("Slots as fast as all neighbours are ready, for tests.", "--ready")] = False

    def settings(self, needed_second: float = 0.0) -> Any:
        """The same for agents, from now on, with so much time between guard times; refuses a slot of guard times."""
        from heliomesh.field.agents.folder import ClockSettings

        given, share = self.guard_second, _GUARD_SHARE
        least = needed_second / (1 - 2 * share) if given is None else needed_second + 2 * given
        length = self.slot_second or max(_USUAL_SLOT_SECOND, least)
        guard = share * length if given is None else given
        refuse(2 * guard >= length, "--guard-second", f"less than half of {length:g} s", f"value {guard:g}")
        return ClockSettings(
            kind="ready" if self.ready else "wall",
            start_second=time.time() + self.start_in,
            slot_second=length,
            guard_second=guard,
        )


@flattened
def deploy_command(
    scenario: shared.ScenarioArgument,
    out: Annotated[Path, option("Empty folder for the devices' folders.")],
    *,
    planner: Annotated[str, option("bids, or one whose devices look up, such as decentralized.")] = "bids",
    settings: shared.PlannerSettings,
    finite: shared.FiniteOption = False,
    places: PlaceOptions,
    times: TimeOptions,
    output: shared.OutputOptions,
) -> None:
    """Write a folder for each device: plan, keys, samples, settings and a unit for systemd."""
    check_installed()
    from heliomesh.field.agents.deploy import Deployment, deploy, needed_second
    from heliomesh.field.agents.folder import SensorSettings
    from heliomesh.scenario.section import validated

    problem = build_noted(settings.scenario(scenario))
    whole = {"interpolate": False} if "interpolate" in find_planner(planner).options.model_fields else {}
    options = shared.without_end(planner, whole | settings.of_planner, finite)
    options = device_options(problem, planner, options, places.seed)
    sensor = validated(SensorSettings, {"kind": places.sensor, "seed": places.seed}, "sensor").check()
    times.settings()  # refuses before planning
    plan = make_plan(problem, planner, options, bound=False, track=output.track)
    own: dict[str, Any] = {"training_seed": places.seed, "options": options}
    own |= {"keys_on_device": places.keys_on_device, "valid_days": places.days}
    clock = times.settings(needed_second(problem, plan))
    how = Deployment(clock, sensor, places.hosts, places.port, **own)  # time counts from here
    written = deploy(problem, plan, out, how)
    first = written[0].path
    facts = {
        "planner": planner,
        "devices": len(written),
        "hops that measurements travel": written[0].settings.hops,
        "network": written[0].settings.network,
        "slot [s]": how.clock.slot_second,
        "slot 0 begins": _first_moment(how.clock),
        **({"make a device's key by": f"heliomesh device members request {first}"} if places.keys_on_device else {}),
        "run a device by": f"heliomesh device run {first}",
    }
    print_facts(facts, output.as_json)


def agent_command(
    folder: Annotated[Path, typer.Argument(help="The device's folder, as `heliomesh device deploy` writes it.")],
    quiet: Annotated[bool, option("Only troubles, no line for every slot.", "--quiet")] = False,
) -> None:
    """Run one device: keep slots, train, exchange models with neighbours, and go on after brown-outs."""
    check_installed()
    from heliomesh.field.agents.agent import run_agent
    from heliomesh.field.agents.folder import AgentFolder

    refuse(not folder.is_dir(), "folder", "a device's folder", f"value {str(folder)!r}")
    found = AgentFolder(folder)
    if quiet:
        run_agent(found, tell)
        return
    tell(f"device {found.settings.device}: slot 0 begins {_first_moment(found.settings.clock)}")
    say(f"took part in {run_agent(found, tell, report=tell)} slots")


def watch_command(
    folder: Annotated[Path, typer.Argument(help="The folder `watch` that `heliomesh device deploy` wrote.")],
    refresh_second: Annotated[float, option("Seconds between reloads of the page.", min=0.1)] = 10.0,
    replan: Annotated[bool, option("Send devices new plans where the network deviates.", "--replan")] = False,
) -> None:
    """Show the live network in the page's own player: page.html in the folder, which a browser reloads."""
    check_installed()
    from heliomesh.field.agents.watch import PAGE, watch

    try:
        with watch(folder, refresh_second) as watcher:
            say(f"{folder / PAGE} shows the network in a browser; Ctrl-C ends", at_once=True)
            watcher.follow(tell if replan else None)
    except (KeyboardInterrupt, SystemExit) as ended:
        tell(f"watch ended; a restart goes on with what is kept in {folder}")
        if isinstance(ended, KeyboardInterrupt):
            raise typer.Exit(128 + signal.SIGINT) from None
        if ended.code != 128 + signal.SIGTERM:  # by which services end
            raise


def _first_moment(clock: "ClockSettings") -> str:
    """When slot 0 begins, in words."""
    if clock.kind == "ready":
        return "when all neighbours are ready"
    return f"at {datetime.fromtimestamp(clock.start_second, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _host(text: str) -> tuple[int, str]:
    device, _, host = text.partition("=")
    refuse(not device.isdecimal() or not host, "--at", "number=host, such as 2=192.168.0.12", f"value {text!r}")
    return int(device), host
