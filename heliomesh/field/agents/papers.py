"""What a member is given later than its folder: a renewed certificate, or a newer list of members."""

from heliomesh.common.durable import write_bytes
from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.agents.identity import newer_certificate
from heliomesh.field.agents.roster import roster_of
from heliomesh.scenario.errors import ScenarioError


def install(folder: AgentFolder, content: bytes) -> bool:
    """Keep a certificate or a list of members; False where the folder's own is as new.

    Raises ScenarioError for what the network's authority did not sign, or a certificate of another's key.
    """
    if content.startswith(b"-----BEGIN"):
        return _install_certificate(folder, content)
    newer = roster_of(content, folder.authority).number > folder.roster().number
    if newer:
        write_bytes(folder.roster_file, content)
    return newer


def _install_certificate(folder: AgentFolder, content: bytes) -> bool:
    """A key that waited for its certificate takes the place of the one before."""
    for key in (folder.key, folder.new_key):
        newer = newer_certificate(content, folder.authority, key, folder.certificate)
        if newer is None:
            continue
        if key == folder.new_key:
            key.replace(folder.key)
        if newer:
            write_bytes(folder.certificate, content)
        return newer
    raise ScenarioError("certificate", f"expected one for the key in {folder.path}, actual: for another key")
