"""The reference page of the command line, from the commands themselves."""

from enum import Enum
from pathlib import Path
from typing import Any

from heliomesh.cli import COMMANDS, loaded

_KINDS = {int: "whole number", float: "number", str: "text", Path: "path", list[str]: "text, may be repeated"}


def page() -> str:
    """Markdown of the page."""
    parts = [
        "# Command line\n",
        "Every command explains itself by `--help`. A mistake in a call is told in one sentence, with exit code 2. "
        "`python -m heliomesh` is the same program. Before a command may stand `--trust`, which lets scenarios "
        "name code as `module:name`, or `--version`.\n",
    ]
    for name in COMMANDS:
        parts += _command(f"heliomesh {name}", loaded(name), 2)
    return "\n".join(parts)


def _command(called: str, command: Any, depth: int) -> list[str]:
    parts = [f"{'#' * depth} `{called}`\n", f"{' '.join(str(command.help).split())}\n"]
    if hasattr(command, "commands"):
        if command.invoke_without_command:
            parts += _called(called, command)
        for name, inner in command.commands.items():
            parts += _command(f"{called} {name}", inner, depth + 1)
        return parts
    return parts + _called(called, command)


def _called(called: str, command: Any) -> list[str]:
    """How a command is called, with its arguments and options."""
    parts = []
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    parts.append(f"```text\n{called}{''.join(_shown(one) for one in arguments)}{' [OPTIONS]' * bool(options)}\n```\n")
    if arguments:
        rows = [f"| `{str(one.metavar or one.name).upper()}` | {_text(one)} |" for one in arguments]
        parts += ["| argument | meaning |", "|---|---|", *rows, ""]
    if options:
        rows = [f"| {_flags(one)} | {_value(one)} | {_default(one)} | {_text(one)} |" for one in options]
        parts += ["| option | value | default | meaning |", "|---|---|---|---|", *rows, ""]
    return parts


def _shown(argument: Any) -> str:
    name = str(argument.metavar or argument.name).upper()
    several = "..." if argument.nargs == -1 else ""
    return f" {name}{several}" if argument.required else f" [{name}]{several}"


def _flags(option: Any) -> str:
    return ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))


def _value(option: Any) -> str:
    if option.is_flag:
        return "–"
    kind = option.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{one.value}`" for one in kind)
    return _KINDS.get(kind, "text")


def _default(option: Any) -> str:
    default = option.default
    if option.required:
        return "*required*"
    return "–" if default is None or callable(default) or default in (False, [], ()) else f"`{default}`"


def _text(parameter: Any) -> str:
    return " ".join(str(parameter.help or "").split()).replace("|", "\\|")
