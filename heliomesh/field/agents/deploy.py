"""A folder for each device of a scenario: its tables, keys, samples, settings and a unit for systemd.

The operator keeps ``authority.key``, with which certificates are signed, and ``watch/``, the identity of `heliomesh
watch`. Neither belongs on a device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import tomli_w

from heliomesh.common.durable import alone_in, file_sha256, json_sha256, write_bytes, write_tensors, write_text
from heliomesh.common.streams import stream
from heliomesh.field.agents import identity
from heliomesh.field.agents.clock import STATE_SHARE
from heliomesh.field.agents.folder import AgentFolder, AgentSettings, ClockSettings, SensorSettings
from heliomesh.field.agents.identity import ROSTER, VALID_DAYS, WATCHER, Roster
from heliomesh.field.agents.tables import hops_of, parts_of
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.settings import TrainSettings
from heliomesh.model.overhead import on_air_second
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem
from heliomesh.model.workload import transmit_second
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.files import FILE_FIELDS
from heliomesh.scenario.scenario import Scenario
from heliomesh.tasks.dataset import load_dataset
from heliomesh.tasks.partition import split

_UNIT = """\
[Unit]
Description=heliomesh agent of device {device}
Wants=network-online.target time-sync.target
After=network-online.target time-sync.target

[Service]
ExecStart=/usr/bin/env heliomesh device run /var/lib/heliomesh/device-{device}
Environment=OMP_NUM_THREADS=1
Restart=on-failure
RestartSec=10

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Deployment:
    """Where devices are, and how they keep time and measure."""

    clock: ClockSettings
    sensor: SensorSettings
    hosts: Mapping[int, str] = field(default_factory=dict)  # of devices that are not on this machine
    first_port: int = 7447  # device i listens at this port + i
    training_seed: int = 0
    strategy: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the planner, for whoever plans anew
    keys_on_device: bool = False  # keys are made there, and certificates come later
    valid_days: int = VALID_DAYS  # of certificates

    def host(self, device: int) -> str:
        """On which machine a device is."""
        return self.hosts.get(device, "127.0.0.1")


def member_folder(root: Path, name: str) -> AgentFolder:
    """The folder of the watcher, or of a device by its number."""
    return AgentFolder(root / (name if name == WATCHER else f"device-{name}"))


def needed_second(problem: Problem, plan: Plan) -> float:
    """Time between a slot's guard times for what the scenario's radio sends [s].

    A device and its neighbours say what the plan tells, one after the other, before anyone acts and sends a model.
    """
    talk, energy = getattr(plan.policy, "talk", None), problem.scenario.energy
    model_second = transmit_second(problem.scenario) / (1 - STATE_SHARE)
    if talk is None:
        return model_second
    said = on_air_second(energy, talk.sent_byte + talk.heard_byte, talk.sent + talk.heard)
    return max(model_second, float(said.max()) / STATE_SHARE)


def deploy(problem: Problem, plan: Plan, folder: Path, how: Deployment) -> list[AgentFolder]:
    """Write the folders of all devices; raises ScenarioError for a plan that devices cannot look up."""
    used = folder.exists() and any(folder.iterdir())
    refuse(used, "--out", "an empty folder", f": {folder} has files")
    scenario, devices = problem.scenario, range(problem.num_devices)
    check_trainable(scenario, TrainSettings(strategy=how.strategy), how.training_seed, here=False)
    for device in sorted(how.hosts):
        refuse(device not in devices, "--at", f"devices below {len(devices)}", f"value {device}")
    parts, dataset = parts_of(plan), load_dataset(scenario.learning)
    partition = split(dataset.train_labels, scenario.learning, len(devices), stream(how.training_seed, "partition"))
    # other letters mean something in Zenoh's keys
    plain = "".join(letter if letter.isalnum() else "-" for letter in scenario.name)
    network = f"{plain or 'network'}-{token_hex(4)}"
    folders = [member_folder(folder, str(device)) for device in devices]
    places = {str(device): f"{how.host(device)}:{how.first_port + device}" for device in devices}
    alike: dict[str, Any] = {
        "network": network,
        "plan": json_sha256([scenario.content_hash, *(part.model_dump(mode="json") for part in parts)]),
        "hops": hops_of(parts, problem.topology),
        "training_seed": how.training_seed,
        "strategy": how.strategy,
        "num_classes": dataset.num_classes,
        "clock": how.clock,
        "sensor": how.sensor,
    }
    with alone_in(folder):
        _write_members(folder, network, len(devices), how)
        watching = {
            "network": network,
            "planner": plan.planner,
            "options": dict(how.options),
            "devices": places,
            "clock": how.clock.model_dump(mode="json"),
            "training_seed": how.training_seed,
        }
        write_scenario(scenario, folder / WATCHER)
        write_text(folder / WATCHER / "watch.toml", tomli_w.dumps(watching))
        for device, found in enumerate(folders):
            write_scenario(scenario, found.path)
            plan_file = found.path / "plan.json"
            write_text(plan_file, parts[device].model_dump_json() + "\n")
            index = partition.of(device)
            samples = {"inputs": dataset.train_inputs[index], "labels": dataset.train_labels[index]}
            write_tensors(found.samples_file, samples)
            write_text(found.path / "heliomesh-agent.service", _UNIT.format(device=device))
            near = {str(other): places[str(other)] for other in problem.topology.neighbours[device]}
            where: dict[str, Any] = {"device": device, "listen": places[str(device)], "neighbours": near}
            found.write_settings(AgentSettings(plan_sha256=file_sha256(plan_file), **where, **alike))
    return folders


def _write_members(root: Path, network: str, num_devices: int, how: Deployment) -> None:
    """The network's authority, and the papers of all members."""
    authority = identity.new_authority(network)
    authority.write(root / "authority.pem", root / "authority.key")
    hosts = {} if how.keys_on_device else {str(device): how.host(device) for device in range(num_devices)}
    hosts[WATCHER] = "127.0.0.1"
    members = {name: identity.new_member(authority, name, host, how.valid_days) for name, host in hosts.items()}
    roster = Roster().admitting({name: member.public_key for name, member in members.items()}).signed(authority)
    write_bytes(root / ROSTER, roster)
    for name in (*map(str, range(num_devices)), WATCHER):
        folder = member_folder(root, name)
        folder.path.mkdir(parents=True)
        write_bytes(folder.authority, identity.certificate_pem(authority.certificate))
        write_bytes(folder.roster_file, roster)
        if name in members:
            members[name].write(folder.certificate, folder.key)


def write_scenario(scenario: Scenario, folder: Path) -> None:
    """Write scenario.toml, with the files that it names beside it."""
    data: dict[str, Any] = scenario.as_dict()
    for section, name in FILE_FIELDS:
        if name in data[section]:
            source = Path(data[section][name])
            copy = f"{section}-{name}-{source.name}"  # two fields may name files of one base name
            write_bytes(folder / copy, source.read_bytes())
            data[section][name] = copy
    write_text(folder / "scenario.toml", tomli_w.dumps(data))
