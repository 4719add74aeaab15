"""List, get and verify datasets; show how they are split."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from heliomesh.commands import options as shared
from heliomesh.commands.facts import show, table
from heliomesh.commands.options import flattened, option
from heliomesh.commands.progress import downloads
from heliomesh.commands.terminal import say
from heliomesh.common import catalog
from heliomesh.common.memory_limit import readable
from heliomesh.common.streams import stream
from heliomesh.tasks.dataset import DATASET_CATALOG, DatasetError, load_dataset
from heliomesh.tasks.partition import split
from heliomesh.tasks.retrieval.search import Found, cache_folder, is_cached, is_started, retrieve, verify
from heliomesh.tasks.retrieval.source import Source

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.command("list")
def list_command(as_json: shared.JsonOption = False) -> None:
    """Datasets, whether they are here, and where."""
    rows = [_row(name) for name in catalog.names(DATASET_CATALOG)]
    shown = {"name": "name", "size": "bytes", "present": "present", "where": "where"}
    cells = [{title: row[name] for title, name in shown.items()} for row in rows]
    show(as_json, rows, table(cells, fold="where"))


@app.command("get")
def get_command(
    names: Annotated[list[str], typer.Argument(help="Datasets to get.")],
    way: Annotated[str | None, option("This way only, such as official; or a folder or archive.", "--from")] = None,
    as_json: shared.JsonOption = False,
    quiet: shared.QuietOption = False,
) -> None:
    """Get datasets by the first way that works, and say which one it was."""
    bundled = [name for name in names if _found(name)[0] is None]  # also refuses unknown names before any is got
    if bundled and way is not None:
        raise DatasetError("--from", f"no value for {bundled[0]!r}, which has no files", f"value {way!r}")

    def got(source: Source) -> Found:
        with downloads(hidden=quiet or as_json) as shown:
            return retrieve(source, way, shown)

    _say_each(names, got, as_json)


def _say_each(names: Iterable[str], get: Callable[[Source], Found], as_json: bool) -> None:
    """A sentence for every dataset as soon as it is dealt with, or all facts as JSON."""
    facts = []
    for name in names:
        found, sentence = _dealt_with(name, get)
        facts.append(found)
        if not as_json:
            say(f"{name}: {sentence}")
    show(as_json, facts)


@app.command("split")
@flattened
def split_command(
    scenario: shared.ScenarioArgument,
    *,
    changes: shared.Changes,
    seed: Annotated[int, option("Seed of the training.", min=0)] = 0,
    as_json: shared.JsonOption = False,
) -> None:
    """How many samples of each class every device of a scenario gets."""
    loaded = changes.scenario(scenario)
    dataset = load_dataset(loaded.learning)
    devices = loaded.network.devices
    partition = split(dataset.train_labels, loaded.learning, devices, stream(seed, "partition"))
    counts = partition.label_counts(dataset.train_labels, dataset.num_classes)
    title = f"{dataset.name}, {loaded.learning.partition}, {devices} devices, seed {seed}"
    rows = [
        {"device": str(device), "samples": row.sum()} | {str(label): count for label, count in enumerate(row)}
        for device, row in enumerate(counts)
    ]
    facts = {"dataset": dataset.name, "samples": counts.tolist()}
    show(as_json, facts, table(rows, title), partition.summary())


@app.command("verify")
def verify_command(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets; all that are here if none is named.")] = None,
    as_json: shared.JsonOption = False,
) -> None:
    """Check cached files against their checksums; exit code 2 and the file's name if one is wrong."""
    files = {name: _found(name)[0] for name in catalog.names(DATASET_CATALOG)}
    here = names or [name for name, source in files.items() if source and is_started(source)]
    _say_each(here, verify, as_json)
    if not here and not as_json:
        say(f"nothing to verify in {cache_folder()}")


def _found(name: str) -> tuple[Source | None, str]:
    """The files of a dataset that has some, and where it comes from, in words."""
    try:
        module: Any = catalog.find(DATASET_CATALOG, name)
    except catalog.UnknownVariantError as error:
        raise DatasetError(f"dataset: {error}") from None
    return getattr(module, "SOURCE", None), str(getattr(module, "ORIGIN", "said by another package"))


def _row(name: str) -> dict[str, Any]:
    source, origin_text = _found(name)
    cached = source if source and is_cached(source) else None
    return {
        "name": name,
        "bytes": source and source.num_bytes,
        "present": source is None or cached is not None,
        "where": str(cache_folder() / name) if cached else origin_text,
    }


def _dealt_with(name: str, get: Callable[[Source], Found]) -> tuple[dict[str, Any], str]:
    """Facts and a sentence on a dataset that is got or verified."""
    source, origin_text = _found(name)
    if source is None:
        return {"name": name, "origin": origin_text}, f"nothing to fetch or verify, {origin_text}"
    found = get(source)
    facts = {"name": name, **asdict(found), "folder": str(found.folder), "bytes": source.num_bytes}
    how = f"got by way {found.way!r}" if found.way else "in the cache"
    why = f"; replaced what was wrong: {found.replaced}" if found.replaced else ""
    sentence = f"{how}, sha256 right, {readable(source.num_bytes)} in {found.folder}{why}"
    return facts | {"sha256": {file.name: file.sha256 for file in source.files}}, sentence
