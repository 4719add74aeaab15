"""Run one command line in this process and say how it ended."""

import contextlib
import io
import json
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heliomesh.cli import main
from heliomesh.common.catalog import UnknownVariantError
from heliomesh.common.memory_limit import TooLargeError
from heliomesh.learning.run import TrainingError
from heliomesh.scenario.errors import ScenarioError
from heliomesh.simulation.trace import TraceError
from heliomesh.tasks.dataset import DatasetError

# what the command line turns into a sentence and exit code 2
OWN_ERRORS = (DatasetError, OSError, ScenarioError, TooLargeError, TraceError, TrainingError, UnknownVariantError)
_SENTENCE = re.compile(r"error: (.*expected .*actual.*|.+: .+\.)")  # of a value, or of a state
_NO_ERROR = ("Traceback (most recent call last)", "Warning:", "error: memory:")


@dataclass(frozen=True)
class Ending:
    """``kind`` is 'success', 'refused' or 'find'; ``text`` says why."""

    kind: str
    text: str


def run_command(arguments: Sequence[str]) -> Ending:
    """Call the command line; anything but success or one clear sentence with exit code 2 is a find."""
    printed, complaint = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["heliomesh", *arguments]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaint), warnings.catch_warnings():
            warnings.simplefilter("error")
            main()
        code: object = 0
    except SystemExit as left:
        code = left.code or 0
    except Exception as error:  # whatever a user would see as a traceback
        return Ending("find", frames(error))
    finally:
        sys.argv = before
    return _judged(arguments, code, printed.getvalue(), complaint.getvalue())


def run_function(work: Callable[[], object]) -> Ending:
    """Call a function that must succeed or raise one of the project's own errors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            work()
    except OWN_ERRORS as error:
        return Ending("refused", str(error))
    except Exception as error:
        return Ending("find", frames(error))
    return Ending("success", "")


def frames(error: BaseException) -> str:
    """The package's own frames of a traceback, and the error."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if "/heliomesh/" in frame.filename]
    lines = [f"{frame.filename.rpartition('/heliomesh/')[2]}:{frame.lineno} {frame.line}" for frame in own]
    return "\n".join([*lines, f"{type(error).__name__}: {error}"[:400]])


def _judged(arguments: Sequence[str], code: object, printed: str, complaint: str) -> Ending:
    if any(words in complaint for words in _NO_ERROR):
        return Ending("find", f"exit code {code}: {complaint}")
    if code == 0:
        return _checked_result(arguments, printed)
    last = complaint.strip().rpartition("\n")[2]
    is_sentence = any(_SENTENCE.fullmatch(line) for line in complaint.splitlines())
    is_usage = complaint.endswith("--help`.\n")  # what the parser refuses
    is_list = arguments[:2] == ["store", "verify"] and ": wrong. " in printed
    if code == 2 and (is_sentence or is_usage or is_list):
        return Ending("refused", complaint.strip() or printed)
    return Ending("find", f"exit code {code} without a clear sentence: {last or printed[-500:]}")


def _checked_result(arguments: Sequence[str], printed: str) -> Ending:
    """A simulation's cost must be a number between 0 and the number of devices."""
    if arguments[0] != "simulate" or "--json" not in arguments:
        return Ending("success", "")
    facts = json.loads(printed)
    cost, devices = facts["cost"], facts["devices"]
    if cost is None or not -1e-9 <= cost <= devices * (1 + 1e-9):
        return Ending("find", f"cost {cost} of {devices} devices")
    return Ending("success", "")
