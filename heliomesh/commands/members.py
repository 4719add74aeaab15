"""`heliomesh device members`: who belongs to a deployed network. A device asks and installs, the operator decides."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heliomesh.commands.agent import DaysOption, check_installed
from heliomesh.commands.options import option
from heliomesh.commands.terminal import say
from heliomesh.scenario.errors import refuse

if TYPE_CHECKING:
    from heliomesh.field.agents.admission import Admission
    from heliomesh.field.agents.folder import AgentFolder

app = typer.Typer(no_args_is_help=True, help="Sign, renew and revoke the certificates of a deployed network.")

NetworkArgument = Annotated[Path, typer.Argument(help="The folder that `heliomesh device deploy` wrote.")]
DeviceArgument = Annotated[Path, typer.Argument(help="The device's own folder.")]
WaitOption = Annotated[float, option("Seconds to look for devices that are at work.", min=0)]


@app.command("request")
def request_command(folder: DeviceArgument) -> None:
    """On a device: make a private key, which stays there, and a request for a certificate."""
    from heliomesh.field.agents.identity import write_request

    own = _device(folder)
    request = folder / "own.csr"
    key = write_request(own.new_key, request, own.settings.network, str(own.settings.device))
    say(f"{request}: send it to the operator, who signs the key {key[:16]} by heliomesh device members sign")


@app.command("sign")
def sign_command(
    network: NetworkArgument,
    requests: Annotated[list[Path], typer.Argument(help="Requests for certificates, own.csr of devices.")],
    days: DaysOption = 180,
    wait: WaitOption = 5.0,
) -> None:
    """Admit devices by their requests: write own.pem and roster.txt into their folders here."""
    admission = _network(network)
    for name, key in admission.sign(requests, days).items():
        say(f"device {name} has the key {key[:16]}: compare it with what the device said")
    _hand_out(admission, wait)


@app.command("install")
def install_command(
    folder: DeviceArgument,
    papers: Annotated[list[Path], typer.Argument(help="own.pem and roster.txt, as the operator wrote them.")],
) -> None:
    """On a device: take a certificate or a list of members; an older one never replaces a newer one."""
    own = _device(folder)
    for path in papers:
        refuse(not path.is_file(), "papers", "a file", f"value {str(path)!r}")
        say(f"{path}: {'installed' if own.install(path.read_bytes()) else 'the one in the folder is as new'}")


@app.command("renew")
def renew_command(network: NetworkArgument, days: DaysOption = 180, wait: WaitOption = 5.0) -> None:
    """Sign new certificates for the same keys of all members."""
    admission = _network(network)
    say(f"{len(admission.renew(days))} certificates end in {days} days")
    _hand_out(admission, wait)


@app.command("revoke")
def revoke_command(
    network: NetworkArgument,
    devices: Annotated[list[int], typer.Argument(help="Numbers of devices.", min=0)],
    wait: WaitOption = 5.0,
) -> None:
    """Revoke devices' keys: nobody hears them any more, and nobody tells them anything."""
    admission = _network(network)
    admission.revoke(devices)
    say(f"list of members {admission.roster.number} is without {', '.join(map(str, devices))}")
    _hand_out(admission, wait)


def _device(folder: Path) -> "AgentFolder":
    check_installed()
    from heliomesh.field.agents.folder import AgentFolder

    return AgentFolder(folder)


def _network(folder: Path) -> "Admission":
    check_installed()
    from heliomesh.field.agents.admission import Admission

    return Admission(folder)


def _hand_out(admission: "Admission", wait_second: float) -> None:
    reached, missed = admission.hand_out(wait_second)
    if reached:
        say(f"at work, and told: {', '.join(reached)}")
    if missed:
        say(f"not reached: {', '.join(missed)}; copy own.pem and roster.txt there, or let neighbours tell the list")
