"""Lines of code by room, without blanks, comments and docstrings: python -m tests.lines, or make lines."""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "heliomesh"
MOST_LINES_OF_A_ROOM, MOST_LINES_OF_A_FILE = 5_500, 400
_WITHOUT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _WITHOUT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def files() -> dict[Path, int]:
    """Code lines of every file of the package."""
    found = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE): code_lines(path.read_text(encoding="utf-8")) for path in found}


def rooms(counted: dict[Path, int]) -> Counter[str]:
    """Code lines of every room; what lies beside the rooms is the door."""
    total: Counter[str] = Counter()
    for path, count in counted.items():
        total[path.parts[0] if len(path.parts) > 1 else "(door)"] += count
    return total


def main() -> None:
    """Print rooms and the longest files."""
    counted = files()
    by_room = rooms(counted)
    for room, count in by_room.most_common():
        print(f"{count:7,} {room}")
    print("the longest files: " + ", ".join(f"{path} {count}" for path, count in Counter(counted).most_common(5)))
    print(f"{by_room.total():,} lines of code in {len(counted)} files")


if __name__ == "__main__":
    main()
