"""`heliomesh data`: list, get and verify datasets, and show how a scenario deals them out."""

from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Column, Table

from heliomesh import catalog
from heliomesh.commands.facts import number_table, print_json
from heliomesh.commands.options import QuietOption, ScenarioArgument, SetOption, check_target, load
from heliomesh.commands.terminal import console, say
from heliomesh.durable import write_text
from heliomesh.learning.dataset import DATASET_CATALOG, DatasetError, load_dataset
from heliomesh.learning.partition import split
from heliomesh.learning.retrieval.search import Found, cache_folder, is_cached, is_started, origin, retrieve, verify
from heliomesh.learning.retrieval.source import Source
from heliomesh.pages.label_mix import label_mix_svg
from heliomesh.problem.size import readable
from heliomesh.streams import stream

app = typer.Typer(no_args_is_help=True, help="List, get and verify datasets; show how they are split.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """Datasets, whether they are here, and where."""
    rows = [_row(name, _module(name)) for name in catalog.names(DATASET_CATALOG)]
    if as_json:
        print_json(rows)
        return
    table = Table("name", "size", "present", Column("where", overflow="fold"), box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        size = "" if row["bytes"] is None else readable(row["bytes"])
        table.add_row(row["name"], size, "yes" if row["present"] else "no", row["where"])
    console().print(table)


@app.command("get")
def get_command(
    names: Annotated[list[str], typer.Argument(help="Datasets to get.")],
    way: Annotated[
        str | None, typer.Option("--from", help="Only this way (system, official, …), or a folder or archive.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Get datasets by the first way that works, and say which one it was."""
    sources = [(name, _source(name)) for name in names]
    bundled = [name for name, source in sources if source is None]
    if bundled and way is not None:
        raise DatasetError(f"--from: expected no value for {bundled[0]!r}, which has no files, actual value {way!r}")
    facts = []
    for name, source in sources:
        if source is None:
            fact = _nothing_to_fetch(name)
        else:
            with _Bar(hidden=quiet or as_json) as bar:
                fact = _facts(source, retrieve(source, way, bar.show))
        facts.append(fact)
        if not as_json:
            say(_sentence(fact))
    if as_json:
        print_json(facts)


@app.command("split")
def split_command(
    scenario: ScenarioArgument,
    overrides: SetOption = [],  # noqa: B006
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the training.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Draw the labels of every device in this .svg.")] = None,
    as_json: JsonOption = False,
) -> None:
    """How many samples of each class every device of a scenario gets."""
    check_target(out, "--out")
    loaded = load(scenario, overrides)
    dataset = load_dataset(loaded.learning)
    devices = loaded.network.devices
    partition = split(dataset.train_labels, loaded.learning, devices, stream(seed, "partition"))
    counts = partition.label_counts(dataset.train_labels, dataset.num_classes)
    title = f"{dataset.name}, {loaded.learning.partition}, {devices} devices, seed {seed}"
    if out is not None:
        write_text(out, label_mix_svg(counts, title=title))
    if as_json:
        print_json({"dataset": dataset.name, "samples": counts.tolist()})
        return
    table = number_table(title, "device", "samples", *map(str, range(dataset.num_classes)))
    for device, row in enumerate(counts):
        table.add_row(str(device), *map(str, (row.sum(), *row)))
    console().print(table)
    say(partition.summary())
    if out is not None:
        say(f"{out}: open it in a browser")


@app.command("verify")
def verify_command(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets; all that are here if none is named.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check cached files against their checksums; exit code 2 and the file's name if one is wrong."""
    sources = [(name, _source(name)) for name in names or catalog.names(DATASET_CATALOG)]
    if not names:
        sources = [(name, source) for name, source in sources if source is not None and is_started(source)]
    facts = []
    for name, source in sources:
        facts.append(_nothing_to_fetch(name) if source is None else _facts(source, verify(source)))
        if not as_json:
            say(_sentence(facts[-1]))
    if as_json:
        print_json(facts)
    elif not facts:
        say(f"nothing to verify in {cache_folder()}")


class _Bar:
    """A progress bar on standard error that follows what is being fetched; on terminals only."""

    def __init__(self, hidden: bool) -> None:
        screen = console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, console=screen, transient=True, disable=hidden or not screen.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, label: str, done_bytes: int, total_bytes: int | None) -> None:
        """Follow one file or command."""
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=total_bytes)
        self._progress.update(self._tasks[label], completed=done_bytes, total=total_bytes)


def _module(name: str) -> Any:
    try:
        return catalog.find(DATASET_CATALOG, name)
    except catalog.UnknownVariantError as error:
        raise DatasetError(f"dataset: {error}") from None


def _origin(module: Any) -> str:
    """Where a dataset comes from, in words."""
    return str(getattr(module, "ORIGIN", "said by another package"))


def _source(name: str) -> Source | None:
    return getattr(_module(name), "SOURCE", None)


def _row(name: str, module: Any) -> dict[str, Any]:
    source: Source | None = getattr(module, "SOURCE", None)
    if source is None:
        return {"name": name, "bytes": None, "present": True, "where": _origin(module), "way": None}
    present = is_cached(source)
    where: str | Path = cache_folder() / name if present else _origin(module)
    way = origin(source) if present else None
    return {"name": name, "bytes": source.num_bytes, "present": present, "where": str(where), "way": way}


def _nothing_to_fetch(name: str) -> dict[str, Any]:
    return {"name": name, "origin": _origin(_module(name))}


def _facts(source: Source, found: Found) -> dict[str, Any]:
    return {
        "name": source.name,
        "way": found.way,
        "fetched": found.fetched,
        "replaced": found.replaced,
        "folder": str(found.folder),
        "bytes": source.num_bytes,
        "sha256": {file.name: file.sha256 for file in source.files},
    }


def _sentence(fact: dict[str, Any]) -> str:
    if "origin" in fact:
        return f"{fact['name']}: nothing to fetch or verify, {fact['origin']}"
    how = f"got by way {fact['way']!r}" if fact["fetched"] else f"in the cache (by way {fact['way']!r})"
    why = f"; replaced what was wrong: {fact['replaced']}" if fact["replaced"] else ""
    return f"{fact['name']}: {how}, sha256 right, {readable(fact['bytes'])} in {fact['folder']}{why}"
