"""The command line: scenarios, plans, simulations, comparisons and training."""

import ast
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from heliomesh.commands.terminal import print_any_letter, say, tell
from heliomesh.common.catalog import trusting
from heliomesh.common.mistakes import FieldError, MistakeError

# A command's module is imported when the command is called: most need PyTorch, which takes seconds to load.
COMMANDS = {
    "scenario": "scenario:app",
    "plan": "plan:plan_command",
    "simulate": "plan:simulate_command",
    "compare": "compare:compare_command",
    "study": "study:app",
    "bench": "bench:bench_command",
    "run": "run:run_command",
    "report": "report:report_command",
    "reproduce": "reproduce:reproduce_command",
    "size": "size:size_command",
    "data": "data:app",
    "store": "store:app",
    "export": "export:export_command",
    "device": "device:app",
}

# Earlier names of commands, and what to call instead.
OLD_NAMES = {
    "train": "run SCENARIO --trace FILE",
    "learn": "compare SCENARIO contributions --train 5",
    "live": "study change",
    "pilot": "study pilot",
    "runs": "store",
    "deploy": "device deploy",
    "agent": "device run",
    "watch": "device watch",
    "fleet": "device fleet",
    "prune": "compare SCENARIO --set network.keep_gap=0.8",
    "scope": "plan SCENARIO decentralized --option hops=2",
}


class _Commands(TyperGroup):
    """The commands, each loaded when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What a command's module says of it, for the list of all: nothing is imported."""
        return TyperCommand(cmd_name, help=told(COMMANDS[cmd_name])) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called; an old name is refused with the new one."""
        if args and args[0] in OLD_NAMES:
            raise FieldError("command", f"expected `heliomesh {OLD_NAMES[args[0]]}`, actual value {args[0]!r}")
        name, found, rest = super().resolve_command(ctx, args)
        if any(one.startswith("--processes") for one in rest):  # they load PyTorch while this process does
            import_module("heliomesh.engine.processes").load_ahead()
        return name, None if found is None else loaded(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        """Call the command; a training that a signal stopped says how far it came."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            number = getattr(stop, "signal_number", None)
            tell("interrupted" if number is None else f"{stop}; the same command goes on")
            raise typer.Exit(128 + (number or signal.SIGINT)) from None


def told(place: str) -> str:
    """A command's docstring, or that of a group's module, read from the source."""
    module, _, name = place.partition(":")
    source = Path(__file__).with_name("commands") / f"{module}.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    command = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return ast.get_docstring(next(command, tree)) or ""


def loaded(name: str) -> Any:
    """The command of that name, or the group of them, from its module."""
    module, _, attribute = COMMANDS[name].partition(":")
    found = getattr(import_module(f"heliomesh.commands.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        found = alone
    return typer.main.get_command(found)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        import heliomesh

        say(f"heliomesh {heliomesh.__version__}")
        raise typer.Exit


@app.callback()
def callback(
    context: typer.Context,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run code that files and options name as module:name.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The command line: scenarios, plans, simulations, comparisons and training."""
    context.with_resource(trusting(trust))


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    print_any_letter()
    try:
        with _signals_that_end():
            code = app(standalone_mode=False)
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        if sentence:
            tell(f"error: {sentence}", lines=isinstance(error, MistakeError))  # some list ways to mend it
        code = 2
    sys.exit(code or 0)


def _sentence(error: Exception) -> str | None:
    """What a user did wrong, empty where help was printed instead; None for an error of the program."""
    if isinstance(error, MistakeError):
        return _by_flag(error)
    if hasattr(error, "format_message"):  # a wrong call; typer's class for all of them has no public name
        message, context = error.format_message(), getattr(error, "ctx", None)
        return f"{message.rstrip('.')}. Try `{context.command_path} --help`." if message and context else str(message)
    if isinstance(error, OSError):
        file = "file" if error.filename is None else os.fsdecode(error.filename)  # its name may be in bytes
        return f"{file}: expected to be usable, actual: {error.strerror}"
    from_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    if isinstance(error, MemoryError) or from_torch:
        return "memory: expected enough for this work, actual: an allocation failed"
    return None


# Fields that the library names and that are options here.
_SAME_NAME = (
    "actors address by_slot device dtype engine false_alarm_prob gpus_per_actor most_dark panel precision strategy "
    "target_accuracy target_loss"
)
_FLAGS = {name: f"--{name.replace('_', '-')}" for name in _SAME_NAME.split()}
_FLAGS |= {"capacity_joule": "--capacity", "changes": "--change"}


def _by_flag(error: MistakeError) -> str:
    """A mistake's sentence, with options in place of the fields that they set."""
    field = getattr(error, "field", "")
    text = str(error).replace(field, _FLAGS[field], 1) if field in _FLAGS else str(error)
    return re.sub(r"\btarget_(loss|accuracy)\b", r"--target-\1", text)


@contextmanager
def _signals_that_end() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program as Ctrl-C does, with exit code 128 + their number.

    One that is ignored, as SIGHUP is under nohup, stays ignored. Signals reach the main thread only.
    """
    found = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has one
    in_main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in found if in_main and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, _leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
