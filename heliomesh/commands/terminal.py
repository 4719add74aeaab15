r"""The one door to the terminal: names that come from files and folders are shown, never obeyed, and no letter fails.

Control characters, marks that turn the direction of text, and bytes of file names that are no text are written as
escapes (``\x1b``). What a terminal's encoding lacks is written in letters that it has.
"""

import codecs
import io
import sys
import unicodedata
from typing import Any

from rich.console import Console
from rich.text import Text

_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # categories of Unicode: control, format, surrogate, line, paragraph
_IN_ASCII = {"±": "+-", "×": "x", "–": "-", "—": "-", "−": "-", "…": "...", "→": "->", "≤": "<=", "≥": ">=", "²": "2"}
_READABLE = "heliomesh.readable"  # a way to treat letters that an encoding lacks, by its name


def printable(text: str, *, lines: bool = False) -> str:
    """The text with all that a terminal would obey as escapes; with ``lines`` ends of lines stay what they are."""
    kept = "\n" if lines else ""
    return "".join(
        letter if letter in kept or unicodedata.category(letter) not in _UNSEEN else _escaped(letter)
        for letter in text
    )


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def say(text: str, *, lines: bool = False, at_once: bool = False) -> None:
    """Print a line on standard output, or several ``lines``; ``at_once`` also into a service's log."""
    sys.stdout.write(printable(text, lines=lines) + "\n")
    if at_once:
        sys.stdout.flush()


def tell(text: str, *, lines: bool = False) -> None:
    """Print a line on standard error, or several ``lines``."""
    sys.stderr.write(printable(text, lines=lines) + "\n")


def note(sentence: str) -> None:
    """Print a remark on standard error."""
    tell(f"note: {sentence}")


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Where tables and progress are printed."""
    return _Console(stderr=stderr, width=width, markup=False, emoji=False)


class _Console(Console):
    """A console that takes all text for text."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Rich's form of a text, on its way to the screen or to be measured."""
        shown = printable(text).encode(self.encoding, _READABLE).decode(self.encoding)  # as wide as it will be
        return super().render_str(shown, **options)


def print_any_letter() -> None:
    """Let standard output and error print every text, whatever their encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_READABLE)


def _readable(error: UnicodeError) -> tuple[str, int]:
    """What to write instead of letters that the encoding lacks, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(letter) or _escaped(letter) for letter in missing), error.end


codecs.register_error(_READABLE, _readable)
