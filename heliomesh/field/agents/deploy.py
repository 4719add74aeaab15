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
from heliomesh.field.agents.folder import AgentFolder, AgentSettings, ClockSettings, SensorSettings
from heliomesh.field.agents.identity import (
    ROSTER,
    VALID_DAYS,
    WATCHER,
    Roster,
    certificate_pem,
    new_authority,
    new_member,
)
from heliomesh.field.agents.tables import hops_of
from heliomesh.interop.export_tables import PlanTables, tabulate
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.settings import TrainSettings
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem
from heliomesh.physics.topology import Topology
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.files import FILE_FIELDS
from heliomesh.scenario.scenario import Scenario
from heliomesh.tasks.dataset import Dataset, load_dataset
from heliomesh.tasks.partition import Partition, split

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
    checkpoint_slots: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)  # of the planner, for whoever plans anew
    keys_on_device: bool = False  # keys are made there, and certificates come later
    valid_days: int = VALID_DAYS  # of certificates

    def place(self, device: int) -> str:
        """Where a device listens, host:port."""
        return f"{self.host(device)}:{self.first_port + device}"

    def host(self, device: int) -> str:
        """On which machine a device is."""
        return self.hosts.get(device, "127.0.0.1")


def device_folder(folder: Path, device: int) -> AgentFolder:
    """The folder of one device."""
    return AgentFolder(folder / f"device-{device}")


def deploy(problem: Problem, plan: Plan, folder: Path, how: Deployment) -> list[AgentFolder]:
    """Write the folders of all devices; raises ScenarioError for a plan that devices cannot look up."""
    if folder.exists() and any(folder.iterdir()):
        raise ScenarioError("--out", f"expected an empty folder, actual: {folder} has files")
    check_trainable(problem.scenario, TrainSettings(strategy=how.strategy), how.training_seed, here=False)
    strangers = sorted(set(how.hosts) - set(range(problem.num_devices)))
    if strangers:
        raise ScenarioError("--at", f"expected devices below {problem.num_devices}, actual value {strangers[0]}")
    tables, dataset = tabulate(plan), load_dataset(problem.scenario.learning)
    learning = problem.scenario.learning
    partition = split(dataset.train_labels, learning, problem.num_devices, stream(how.training_seed, "partition"))
    with alone_in(folder):
        return _Writer(problem, tables, dataset, partition, folder, how).write()


@dataclass(frozen=True)
class _Writer:
    """All folders of one network."""

    problem: Problem
    tables: PlanTables
    dataset: Dataset
    partition: Partition
    root: Path
    how: Deployment

    def write(self) -> list[AgentFolder]:
        # other letters mean something in Zenoh's keys
        plain = "".join(letter if letter.isalnum() else "-" for letter in self.problem.scenario.name)
        network = f"{plain or 'network'}-{token_hex(4)}"
        authority = new_authority(network)
        authority.write(self.root / "authority.pem", self.root / "authority.key")
        devices = range(self.problem.num_devices)
        hosts = {} if self.how.keys_on_device else {str(device): self.how.host(device) for device in devices}
        hosts[WATCHER] = "127.0.0.1"
        members = {name: new_member(authority, name, host, self.how.valid_days) for name, host in hosts.items()}
        roster = Roster().admitting({name: member.public_key for name, member in members.items()}).signed(authority)
        write_bytes(self.root / ROSTER, roster)
        folders = {str(device): device_folder(self.root, device) for device in devices}
        folders[WATCHER] = AgentFolder(self.root / WATCHER)
        for name, folder in folders.items():
            folder.path.mkdir(parents=True)
            write_bytes(folder.authority, certificate_pem(authority.certificate))
            write_bytes(folder.roster_file, roster)
            if name in members:
                members[name].write(folder.certificate, folder.key)
        self._watcher(folders[WATCHER], network)
        return [self._device(device, network) for device in devices]

    def _device(self, device: int, network: str) -> AgentFolder:
        found, topology = device_folder(self.root, device), self.problem.topology
        write_scenario(self.problem.scenario, found.path)
        own = self.tables.model_copy(update={"devices": (self.tables.devices[device],)})
        plan_file = found.path / "plan.json"
        write_text(plan_file, own.model_dump_json() + "\n")
        index = self.partition.of(device)
        samples = {"inputs": self.dataset.train_inputs[index], "labels": self.dataset.train_labels[index]}
        write_tensors(found.samples_file, samples)
        write_text(found.path / "heliomesh-agent.service", _UNIT.format(device=device))
        found.write_settings(self._settings(device, network, file_sha256(plan_file), topology))
        return found

    def _settings(self, device: int, network: str, plan_sha256: str, topology: Topology) -> AgentSettings:
        how = self.how
        return AgentSettings(
            device=device,
            network=network,
            plan=plan_name(self.problem, self.tables),
            plan_sha256=plan_sha256,
            hops=self.hops,
            listen=how.place(device),
            neighbours={str(other): how.place(other) for other in topology.neighbours[device]},
            training_seed=how.training_seed,
            strategy=how.strategy,
            num_classes=self.dataset.num_classes,
            checkpoint_slots=how.checkpoint_slots,
            clock=how.clock,
            sensor=how.sensor,
        )

    @property
    def hops(self) -> int:
        """How far measurements travel."""
        topology, devices = self.problem.topology, range(self.problem.num_devices)
        return hops_of(self.tables, {device: topology.within(device, len(devices)) for device in devices})

    def _watcher(self, found: AgentFolder, network: str) -> None:
        """What `heliomesh device watch` needs to see all devices."""
        write_scenario(self.problem.scenario, found.path)
        places = {str(device): self.how.place(device) for device in range(self.problem.num_devices)}
        told = {
            "network": network,
            "planner": self.tables.planner,
            "options": dict(self.how.options),
            "devices": places,
            "clock": self.how.clock.model_dump(mode="json"),
            "training_seed": self.how.training_seed,
        }
        write_text(found.path / "watch.toml", tomli_w.dumps(told))


def plan_name(problem: Problem, tables: PlanTables) -> str:
    """A hash of a whole plan and its scenario."""
    return json_sha256([problem.scenario.content_hash, tables.model_dump(mode="json")])


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
