"""Trained models, device by device, for other tools: a named `state_dict` in safetensors, or an ONNX graph.

    heliomesh store export RUN --out models                  # models/device_0.safetensors, …
    heliomesh store export RUN --out models --format onnx    # models/device_0.onnx, …

A state has the names of the PyTorch model's own and loads with ``strict=True``. A graph takes ``inputs`` (batch, …)
of any batch size and gives ``scores`` (batch, class). Both say in their metadata what they came from.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from heliomesh.common.durable import alone_in, write_bytes, write_tensors
from heliomesh.common.mistakes import in_one_line
from heliomesh.learning.run import Run, TrainingError
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario
from heliomesh.tasks.dataset import Dataset, load_dataset
from heliomesh.tasks.model import build_model

WeightFormat = Literal["safetensors", "onnx"]

_OPSET = 18  # the lowest that the exporter writes without a conversion


def trained_model(run: Run, device: int, dataset: Dataset | None = None) -> nn.Module:
    """A device's trained model, ready to classify; ``dataset`` where the run had one of its own.

    Raises TrainingError for a run without weights, an unknown device, or weights of another model.
    """
    if not 0 <= device < len(run.weights):
        raise TrainingError("device", f"0 to {len(run.weights) - 1}", f"value {device}")
    TrainingError.when(not run.weights.numel(), "run", "its weights were not kept.")
    settings = _scenario(run).learning
    data = dataset or load_dataset(settings)
    model = build_model(settings.model, data.input_shape, data.num_classes, 0, settings.buffers)
    names = [name for name, _ in model.named_parameters()]
    found = run.parameters(device)
    TrainingError.when(names != list(found), "run", f"weights {', '.join(names)}", f"names {', '.join(found)}")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(found[name])
    return model.eval()


def state_dict(run: Run, device: int, dataset: Dataset | None = None) -> dict[str, Tensor]:
    """A device's trained state by name, with buffers and tied weights, as ``load_state_dict`` takes it strictly."""
    state = trained_model(run, device, dataset).state_dict()
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def write_weights(run: Run, folder: Path, form: WeightFormat, dataset: Dataset | None = None) -> list[Path]:
    """Write one file per device; returns them."""
    for name in ("onnx", "onnxscript") if form == "onnx" else ():
        if find_spec(name) is None:
            raise TrainingError(f"{name} is not installed. Run `pip install heliomesh[onnx]`.")
    data = dataset or load_dataset(_scenario(run).learning)
    files = [folder / f"device_{device}.{form}" for device in range(len(run.weights))]
    with alone_in(folder):
        for device, path in enumerate(files):
            if form == "onnx":
                _write_onnx(path, trained_model(run, device, data), data, _origin(run, device))
            else:
                write_tensors(path, state_dict(run, device, data), _origin(run, device))
    return files


def _scenario(run: Run) -> Scenario:
    try:
        return Scenario.from_toml(run.provenance["scenario_toml"])
    except (KeyError, ScenarioError) as error:
        raise TrainingError("run", "a scenario of this version", f": {in_one_line(error)}") from None


def _origin(run: Run, device: int) -> dict[str, str]:
    """What a device's model came from; texts, as both formats want them."""
    kept = ("name", "planner", "seed", "scenario", "dataset", "key")
    return {"device": str(device), **{name: str(run.provenance[name]) for name in kept if name in run.provenance}}


def _write_onnx(path: Path, model: nn.Module, data: Dataset, origin: dict[str, str]) -> None:
    with _quiet():
        program = torch.onnx.export(
            model,
            (data.test_inputs[:2],),
            dynamo=True,
            opset_version=_OPSET,
            input_names=["inputs"],
            output_names=["scores"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    if program is None:
        raise TrainingError(f"{path}: PyTorch's exporter returned no graph.")
    graph = program.model_proto
    for name, value in origin.items():
        graph.metadata_props.add(key=name, value=value)
    write_bytes(path, graph.SerializeToString())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on its own inner workings."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
