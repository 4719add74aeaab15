"""Deploy, run and watch real devices; rehearse them in one process."""

import typer

from heliomesh.commands.agent import agent_command, deploy_command, watch_command
from heliomesh.commands.fleet import fleet_command
from heliomesh.commands.members import app as members

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
app.command("deploy")(deploy_command)
app.command("run")(agent_command)
app.command("watch")(watch_command)
app.command("fleet")(fleet_command)
app.add_typer(members, name="members")
