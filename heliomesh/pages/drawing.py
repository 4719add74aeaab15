"""Pictures as SVG text: equal numbers give equal bytes, words stay text, and a description says what is shown.

Commands import pictures when they draw one: matplotlib takes a second to load.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

INK, PAPER = "#222222", "#ffffff"
_STYLE: Any = {  # matplotlib's names are a type of their own
    "svg.hashsalt": "heliomesh",  # no random names
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar in a scenario's name is a dollar
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
}


@contextmanager
def drawing() -> Iterator[None]:
    """The look of all pictures, for the time in which one is made and written."""
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's fonts draw the words, not ours
        yield


def svg_text(figure: Figure, title: str, description: str) -> str:
    """The figure as SVG, with a title and a description for those who cannot see it; call it within `drawing`."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Title": title, "Date": None, "Creator": None})
    named = out.getvalue().replace("<svg ", '<svg role="img" ', 1)
    return named.replace("</title>", f"</title>\n <desc>{escape(description)}</desc>", 1)
