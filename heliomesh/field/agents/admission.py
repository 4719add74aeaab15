"""What the operator decides in the folder of a whole network: who is a member, and for how long.

``authority.key`` signs certificates and lists of members here, and never leaves this folder. Both are written to the
devices' folders beside it, and handed to all devices that are at work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heliomesh.common.durable import make_folder, write_bytes
from heliomesh.field.agents import identity
from heliomesh.field.agents.deploy import member_folder
from heliomesh.field.agents.folder import read_settings
from heliomesh.field.agents.identity import ROSTER, WATCHER, Identity, Roster
from heliomesh.field.agents.link import delivered
from heliomesh.field.agents.watch import WatchSettings
from heliomesh.scenario.errors import ScenarioError, refuse


@dataclass
class Admission:
    """The members of one network, and papers that are not handed out yet."""

    root: Path
    _papers: dict[str, list[bytes]] = field(default_factory=dict)  # by device

    def __post_init__(self) -> None:
        self._settings = read_settings(WatchSettings, self.root / WATCHER / "watch.toml")
        self._authority: Identity = identity.read_identity(self.root / "authority.pem", self.root / "authority.key")

    @property
    def roster(self) -> Roster:
        """The newest list of members."""
        return identity.roster_of((self.root / ROSTER).read_bytes(), self.root / "authority.pem")

    def sign(self, requests: Sequence[Path], days: int) -> dict[str, str]:
        """Admit devices by their requests; the public key of each. A device's key before is revoked."""
        keys = dict(self._requested(path) for path in requests)
        self._issue(keys, days)
        self._publish(self.roster.admitting(keys))
        return keys

    def renew(self, days: int) -> list[str]:
        """New certificates for the same keys of all members; their names."""
        keys = self.roster.keys
        self._issue(keys, days)
        return sorted(keys)

    def revoke(self, devices: Sequence[int]) -> None:
        """The next list of members is without some devices, and their keys never come back."""
        names = {str(device) for device in devices}
        strangers = sorted(names - set(self.roster.keys))
        if strangers:
            raise ScenarioError("devices", f"expected members of the network, actual value {strangers[0]}")
        self._publish(self.roster.without(names))

    def hand_out(self, second: float) -> tuple[list[str], list[str]]:
        """Give papers to devices that are at work, within so many seconds; those reached, and those not."""
        settings, own = self._settings, member_folder(self.root, WATCHER)
        told = delivered(own, settings.network, settings.devices, self._papers, second)
        return sorted(told), sorted(set(self._papers) - told)

    def _requested(self, path: Path) -> tuple[str, str]:
        name, key = identity.read_request(path, self._settings.network)
        refuse(name not in self._settings.devices, path, "one of the network's devices to ask", f": {name!r:.20}")
        refuse(key in self.roster.revoked, path, "a key that was not revoked", ": it was; make a new one")
        return name, key

    def _issue(self, keys: Mapping[str, str], days: int) -> None:
        """Certificates for keys by member."""
        for name, key in keys.items():
            host = "127.0.0.1" if name == WATCHER else self._settings.devices[name].rpartition(":")[0]
            pem = identity.certificate_pem(identity.certified(self._authority, name, host, key, days))
            folder = member_folder(self.root, name)
            make_folder(folder.path)
            try:
                folder.install(pem)
            except ScenarioError:  # the key is elsewhere
                write_bytes(folder.certificate, pem)
            if name != WATCHER:
                self._papers.setdefault(name, []).append(pem)

    def _publish(self, roster: Roster) -> None:
        """The operator's own copy is written first: a number is never used twice."""
        content = roster.signed(self._authority)
        write_bytes(self.root / ROSTER, content)
        for name in (WATCHER, *self._settings.devices):
            folder = member_folder(self.root, name)
            if folder.path.is_dir():
                write_bytes(folder.roster_file, content)
        for name in set(roster.keys) - {WATCHER}:
            self._papers.setdefault(name, []).append(content)
