"""Numbers and tables of the pages, written from `results/`: python docs/site/page_numbers.py, or make numbers.

Nobody types the number of a result into a page. A comment before it says where it stands, and another ends it:

    <!--= accuracy_panel ; i.i.d., φ = 1: proposal against myopic (SCA) ; over the run -->**+0.65 ± 0.08**<!--/-->

names a file of `results/`, a row by its first cells (joined by " / ", with * for anything) and a column. A fourth
part says how to show it: a format such as +.1f for the mean alone, `plain` without bold, `minus` with the other sign,
and of several rows `span` (least to greatest mean), `bold` (how many exclude zero), or those `ahead` or `behind`.

    <!--table: hops-->       a table that a function of this file makes
    <!--printed: ledger-->   what a command printed: results/printed/ledger.txt below its first line, the command

Files are Markdown or terminal tables, or JSON, where the row is a path. `tests/test_docs_numbers.py` fails where a
page differs from what would be written.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

Row = tuple[Sequence[str], Mapping[str, str]]  # its cells, and the same by column

END = "<!--/-->"
_NUMBER = re.compile(r"<!--= (.*?) -->.*?<!--/-->", re.DOTALL)
_BLOCK = re.compile(r"<!--(table|printed): (\S+)-->.*?<!--/-->", re.DOTALL)
_AT_A_BEGINNING = re.compile(r"^ *(?:[-*] +)?<!--=.*$", re.MULTILINE)
_MEAN = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def written(page: str) -> str:
    """The page with every number as `results/` has it now; raises LookupError for what results do not have."""
    if misplaced := _AT_A_BEGINNING.search(page):
        raise LookupError(f"a line that begins with a comment is no Markdown: {misplaced[0]!r}")
    page = _BLOCK.sub(lambda found: f"<!--{found[1]}: {found[2]}-->\n\n{_block(*found.groups())}\n\n{END}", page)
    return _NUMBER.sub(lambda found: f"<!--= {found[1]} -->{number(found[1])}{END}", page)


def _block(kind: str, name: str) -> str:
    if kind == "table":
        return "\n".join(TABLES[name]())
    _, _, text = (RESULTS / "printed" / f"{name}.txt").read_text(encoding="utf-8").partition("\n")
    return f"```\n{text.strip()}\n```"


def number(query: str) -> str:
    """What a comment asks for."""
    source, row, column, *form = query.split(" ; ")
    cells = [cells[column] for _, cells in rows_like(source, row) if column in cells]
    if not cells:
        raise LookupError(f"results have no {query!r}")
    return shown(cells, form[0] if form else "", query)


def shown(cells: Sequence[str], form: str, query: str = "") -> str:
    """One cell, or several put together, as a page shows it."""
    words = form.split()
    digits = next((word for word in words if word[-1] in "fd%"), "")
    for word, sign in (("bold", ""), ("ahead", "+"), ("behind", "-")):
        if word in words:
            return str(sum(cell.startswith(f"**{sign}") for cell in cells))
    means = [mean(cell) for cell in cells]
    if "minus" in words:
        means = [-one for one in means]
    if "span" in words:
        return _typeset(f"{format(min(means), digits)} to {format(max(means), digits)}")
    if len(set(cells)) > 1:
        raise LookupError(f"{len(cells)} numbers of results answer {query!r}")
    if digits:
        return _typeset(format(means[0], digits))
    cell = cells[0]
    if "minus" in words:
        cell = _MEAN.sub(
            lambda found: {"+": "-", "-": "+"}.get(found[0][0], "-") + found[0].lstrip("+-"), cell, count=1
        )
    return _typeset(cell.replace("*", "") if "plain" in words else cell)


def _typeset(text: str) -> str:
    """With the sign for minus."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


def mean(cell: str) -> float:
    """The first number of a cell."""
    found = _MEAN.search(cell.replace("−", "-"))
    if found is None:
        raise LookupError(f"no number in {cell!r}")
    return float(found[0].replace(",", ""))


def rows_like(source: str, pattern: str) -> list[Row]:
    """Rows of a file whose first cells, joined by " / ", are these."""
    wanted = re.compile(".*".join(re.escape(part) for part in pattern.split("*")))
    count = pattern.count(" / ") + 1
    return [row for row in rows(source) if wanted.fullmatch(" / ".join(row[0][:count]))]


@cache
def rows(source: str) -> list[Row]:
    """All rows of all tables of a file below `results/`, named without its ending, or of "table NAME" made here."""
    if source.startswith("table "):
        return list(_markdown_rows("\n".join(TABLES[source.removeprefix("table ")]())))
    for ending, read in ((".md", _terminal_rows), (".txt", _terminal_rows), (".json", _json_rows)):
        path = RESULTS / f"{source}{ending}"
        if path.exists():
            return list(read(path.read_text(encoding="utf-8")))
    raise LookupError(f"no results {source!r}")


def _markdown_rows(text: str) -> Iterable[Row]:
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells
        elif set("".join(cells)) - set("-: "):
            yield [cell.strip("`") for cell in cells], dict(zip(head, cells, strict=False))


def _terminal_rows(text: str) -> Iterable[Row]:
    """Rows of tables whose columns are two spaces apart, below a line; Markdown tables count as such."""
    yield from _markdown_rows(text)
    head: list[str] = []
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        cells = re.split(r"\s{2,}", line.strip())
        if line.strip().startswith("──"):
            head = re.split(r"\s{2,}", before.strip())
        elif len(cells) == len(head):
            yield [cells[0].removesuffix(" *"), *cells[1:]], dict(zip(head, cells, strict=True))
        else:
            head = []


def _json_rows(text: str) -> Iterable[Row]:
    def within(value: object, path: tuple[str, ...]) -> Iterable[Row]:
        if isinstance(value, dict):
            yield path, {key: str(one) for key, one in value.items() if isinstance(one, int | float)}
            for key, one in value.items():
                yield from within(one, (*path, key))

    return within(json.loads(text), ())


def table(head: str, lines: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; numbers to the right."""
    lines = list(lines)
    count = head.count(" | ") + 1
    rule = [":" if re.match(r"[-*+−]*\d", lines[-1][column]) else "" for column in range(count)]
    return [
        f"| {head} |",
        "|" + "".join(f"---{one}|" for one in rule),
        *(f"| {' | '.join(line)} |" for line in lines),
    ]


def cell(source: str, row: str, column: str, form: str = "") -> str:
    """A cell of a table that is made here; a dash where results have none."""
    if not rows_like(source, row):
        return "–"
    return number(f"{source} ; {row} ; {column}" + (f" ; {form}" if form else ""))


PARTITIONS = ("i.i.d.", "Dir(0.8)", "Dir(0.1)")
SEARCHED = "proposal, literal, γ searched"
NETWORKS = ("ring10", "ring10, 25 cm²", "grid25", "geometric30")


EQUAL_TERMS = "separate, `reassigned`"
OTHER_TERMS = {  # of rows that are not called as their planner, or have other terms: its name, actions and rule
    "bids, control paid": ("`bids`, messages paid", EQUAL_TERMS),
    "receiver, coupled": ("`receiver`", "coupled, `reassigned`, six last slots of sending"),
    "receiver, paper's terms": ("`receiver`", "coupled, `model`, not tuned"),
    "decentralized, paper's terms": ("`decentralized`", "coupled, `model`, not tuned"),
}
ON_RING10 = (
    *("contributions", "bids", "bids, control paid", "news", "decentralized", "receiver, coupled", "receiver"),
    *("myopic", "turns", "skiptrain", "receiver, paper's terms", "decentralized, paper's terms"),
)
_NOT_FOR_LEARNING = (
    "decentralized",
    "receiver, coupled",
    "receiver",
    "myopic",
    "uncoordinated",
    "turns",
    "skiptrain",
)
SETTINGS = [f"{network}, {partition}" for network in NETWORKS for partition in PARTITIONS]


def learning_on_ring10() -> list[str]:
    """The planners' accuracies, and how much energy they spend."""
    lines = []
    for label in ON_RING10:
        planner, terms = OTHER_TERMS.get(label, (f"`{label}`", EQUAL_TERMS))
        named = [f"ring10, {partition} / {label}" for partition in PARTITIONS]
        accuracies = [cell("learning", row, "accuracy %") for row in named]
        joules = sorted({cell("learning", row, "joule") for row in named}, key=mean)
        spent = joules[0] if len(joules) == 1 else f"{joules[0]} to {joules[-1]}"
        lines.append([planner, terms, *accuracies, spent])
    return table(f"planner | actions, rule | {' | '.join(PARTITIONS)} | joule", lines)


def _against_contributions(source: str, settings: Iterable[str], schemes: Mapping[str, str]) -> list[str]:
    lines = [
        [setting, cell(source, f"{setting} / contributions", "accuracy %")]
        + [cell(source, f"{setting}: {scheme} against contributions", "at the end") for scheme in schemes]
        for setting in settings
    ]
    return table(f"setting | `contributions` | {' | '.join(schemes.values())}", lines)


def learning() -> list[str]:
    """Differences from `contributions` on Fashion-MNIST, of tuned planners on equal terms."""
    schemes = {name: f"`{name}`" for name in ("bids", "news", "decentralized", "receiver", "turns", "skiptrain")}
    schemes |= {"bids, control paid": "`bids`, paid", "receiver, coupled": "`receiver`, coupled"}
    return _against_contributions("learning", SETTINGS, schemes)


def best_others() -> list[str]:
    """By setting the plan that is best of those that do not plan for learning, and how far it is behind."""
    lines = []
    for setting in SETTINGS:
        found = {
            name: mean(cell("learning", f"{setting} / {name}", "accuracy %"))
            for name in _NOT_FOR_LEARNING
            if rows_like("learning", f"{setting} / {name}")
        }
        best = max(found, key=lambda name: found[name])
        behind = cell("learning", f"{setting}: {best} against contributions", "at the end", "minus")
        lines.append([setting, f"`{best}`", behind])
    return table("setting | best of those that do not plan for learning | contributions ahead", lines)


def learning_joules() -> list[str]:
    """Energy that `contributions` spends, in percent of what `receiver` spends on the paper's terms."""
    lines = []
    for setting in SETTINGS:
        own, theirs = (
            mean(cell("learning", f"{setting} / {name}", "joule"))
            for name in ("contributions", "receiver, paper's terms")
        )
        lines.append([setting, f"{100 * (own / theirs - 1):+.1f}"])
    return table("setting | %", lines)


def learning_cifar10() -> list[str]:
    """Differences from `contributions` on CIFAR-10, of planners that were not tuned."""
    schemes = {"news": "`news`", "turns": "`turns`", "skiptrain": "`skiptrain`", "coupled": "`receiver`"}
    schemes |= {"proposal": "paper's proposal", "ideal": "lossless ideal"}
    return _against_contributions("learning_cifar10", PARTITIONS[:2], schemes)


_CHANGES = ("rule", "actions", "agreement", "plan")


def parts() -> list[str]:
    """Shapley values of the four changes, and their sum."""
    head = "points by change (Shapley)"
    lines = []
    for setting in SETTINGS[:3]:
        (found,) = [cells for cells_, cells in rows("parts") if head in cells and cells[head] == setting]
        lines.append([setting, *(_typeset(found[name]) for name in (*_CHANGES, "all together"))])
    return table(f"setting | {' | '.join(_CHANGES)} | all together", lines)


def order_of_schemes() -> list[str]:
    """The paper's order with its panel: over the run, and at the end."""
    pairs = ("centralized against proposal", "proposal against myopic (SCA)", "myopic (SCA) against uncoordinated")
    lines = [
        [
            f"{partition}, φ = {phi}",
            *(_run_and_end("accuracy_panel", f"{partition}, φ = {phi}: {one}") for one in pairs),
        ]
        for phi in (1, 0.3)
        for partition in PARTITIONS[:2]
    ]
    return table("setting | centralized against proposal | proposal against SCA | SCA against uncoordinated", lines)


def _run_and_end(source: str, row: str) -> str:
    return f"{cell(source, row, 'over the run')} ({cell(source, row, 'at the end')})"


def battery() -> list[str]:
    """The proposal against SCA by capacity, and the losses of both."""
    lines = []
    for capacity in (2, 3, 4, 6, 8):
        pairs = [f"{one}, {capacity}: proposal against myopic (SCA)" for one in PARTITIONS[:2]]
        losses = [
            cell("battery", f"i.i.d. / {scheme} / {capacity}", "update loss")
            for scheme in ("myopic (SCA)", "proposal")
        ]
        lines.append([f"{capacity} J", *(_run_and_end("battery", one) for one in pairs), *losses])
    return table("capacity | i.i.d. | Dir(0.8) | update loss, SCA | update loss, proposal", lines)


def hops() -> list[str]:
    """Table I of the paper beside ours."""
    paper = {0: ("75.9", "65.2"), 1: ("73.3", "62.2"), 2: ("84.2", "79.9"), 3: ("80.9", "71.7")}
    lines = []
    for k, theirs in paper.items():
        iid, unlike = (cell("hops", f"{one} / proposal / {k}", "accuracy %") for one in PARTITIONS[:2])
        losses = [cell("hops", f"i.i.d. / {form} / {k}", "update loss") for form in ("proposal", SEARCHED)]
        lines.append([str(k), theirs[0], iid, theirs[1], unlike, *losses])
    head = "k | paper, i.i.d. | ours | paper, non-i.i.d. | ours, Dir(0.8) | update loss | literal, γ searched"
    return table(head, lines)


def rounds() -> list[str]:
    """Gains over no round of both forms with both panels, and update losses with the smaller one."""
    forms = [f"{panel}{form}" for panel in ("", "25 cm², ") for form in ("proposal", SEARCHED)]
    lines = [
        [str(r)]
        + [cell("rounds", f"{form}: {r} against 0", "over the run") for form in forms]
        + [cell("rounds", f" / {form} / {r}", "update loss") for form in ("proposal", SEARCHED)]
        for r in (0, 1, 2, 5, 10, 20)
    ]
    head = "R | default form | literal, γ searched | default form, 25 cm² | literal, γ searched, 25 cm²"
    return table(f"{head} | update loss, default | update loss, literal", lines)


def defaults() -> list[str]:
    """The literal form's defaults out of sight, each at a γ of its own."""
    names = {
        "idle, empty battery": "idle, empty battery",
        "idle, worst gain": "idle, worst gain (the median of two)",
        "idle, best gain": "idle, best gain",
        "low power, full battery": "sending at low power",
        "high power, full battery": "sending at high power",
    }
    settings = ("R = 5", "R = 20", "R = 5, 25 cm²", "R = 20, 25 cm²")
    lines = [
        [shown_as]
        + [cell("defaults", f"{one}: {name} against idle, full battery", "over the run") for one in settings]
        for name, shown_as in names.items()
    ]
    return table(f"default | {' | '.join(settings)}", lines)


def _copied(source: str, columns: Mapping[str, str]) -> list[str]:
    """Columns of the one table that has all of them, under other names."""
    lines = [[_typeset(cells[name]) for name in columns] for _, cells in rows(source) if set(columns) <= set(cells)]
    return table(" | ".join(columns.values()), lines)


def certificates() -> list[str]:
    """Costs, bounds and gaps of the shipped scenarios."""
    columns = ("scenario", "cost", "lower bound", "gap %")
    return _copied("printed/certificates", {name: name for name in columns})


def algorithm1_on_rings() -> list[str]:
    """Exact excess of all forms on small rings."""
    rings = ("5-ring, φ = .3", "5-ring, φ = 1", "8-ring, φ = .3", "8-ring, φ = 1", "8-ring, φ = .3, rich harvest")
    return _copied("printed/algorithm1", {"scheme": "scheme", **{name: name for name in rings}})


def algorithm1_by_gamma() -> list[str]:
    """Exact excess of the literal form by γ and R, and what Theorem 2 promises."""
    counts = {f"R = {r}": f"R = {r}" for r in (0, 1, 2, 5, 20, 40)}
    return _copied("printed/algorithm1", {"γ": "γ", **counts, "Theorem 2": "Theorem 2, R = 20"})


def algorithm1_by_default_action() -> list[str]:
    """Exact excess of the literal form by the default action."""
    names = [f"R = {r}, {which}" for r in (5, 20) for which in ("γ = 100", "best γ")]
    return _copied("printed/algorithm1", {"default action": "default action", **{name: name for name in names}})


def algorithm1_on_ring10() -> list[str]:
    """Excess over the bound on ring10 by panel and φ, the literal form at its best γ."""
    columns = {
        "panel, φ": "panel, φ",
        "default form": "default form",
        "myopic": "SCA",
        "uncoordinated": "uncoordinated",
    }
    columns |= {"literal, γ = 100": "literal, R = 20, γ = 100"}
    columns |= {name: name for r in (20, 5, 1) for name in (f"literal, R = {r}", f"its γ, R = {r}")}
    return _copied("printed/algorithm1_ring10", columns)


def algorithm1_hops() -> list[str]:
    """The same by hops."""
    return _copied(
        "printed/algorithm1_ring10", {name: name for name in ("panel", "k", "default form", "literal", "its γ")}
    )


def algorithm1_defaults() -> list[str]:
    """The same by defaults out of sight."""
    return _copied(
        "printed/algorithm1_ring10", {name: name for name in ("panel", "R", "default", "cost", "difference", "its γ")}
    )


TABLES: dict[str, Callable[[], list[str]]] = {
    made.__name__: made
    for made in (
        *(learning_on_ring10, learning, best_others, learning_joules, learning_cifar10, parts),
        *(order_of_schemes, battery, hops, rounds, defaults),
        *(certificates, algorithm1_on_rings, algorithm1_by_gamma, algorithm1_by_default_action),
        *(algorithm1_on_ring10, algorithm1_hops, algorithm1_defaults),
    )
}


def main() -> None:
    """Write the pages that change, and name them."""
    changed = {page: new for page in PAGES if (new := written(old := page.read_text(encoding="utf-8"))) != old}
    for page, text in changed.items():
        page.write_text(text, encoding="utf-8")
    print(f"written: {', '.join(page.relative_to(ROOT).as_posix() for page in changed) or 'none'}")


if __name__ == "__main__":
    main()
