"""Exported models are the trained ones: states load strictly, graphs give the same scores."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import heliomesh as hm
from heliomesh.interop.weights import state_dict, trained_model, write_weights
from heliomesh.tasks.dataset import load_dataset
from heliomesh.tasks.model import build_model

CHANGES = {"slots": 3, "learning.local_steps": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    scenario = hm.Scenario.load("tiny").override(CHANGES)
    hm.run(scenario, "uncoordinated", folder=place, strategy="loop")
    return place


@pytest.fixture(scope="module")
def data():
    return load_dataset(hm.Scenario.load("tiny").learning)


def test_a_state_loads_strictly_and_scores_as_the_run_did(folder, data, tmp_path, call):
    code, printed, _ = call("store", "export", folder, "--out", tmp_path, "--json")
    files = json.loads(printed)["files"]
    assert (code, len(files)) == (0, 5)
    run = hm.Run.load(folder)
    for device, file in enumerate(files):
        model = build_model("mlp", (1, 8, 8), 10, seed=99)
        model.load_state_dict(load_file(file), strict=True)
        right = (model(data.test_inputs).argmax(1) == data.test_labels).float().mean()
        assert run.accuracy[-1, device] == pytest.approx(float(right), abs=1e-6)
    with safe_open(files[3], "pt") as file:
        assert file.metadata()["device"] == "3"
        assert file.metadata()["planner"] == "uncoordinated"


class Tied(torch.nn.Module):
    """A buffer of its own, and one layer under two names."""

    def __init__(self, shape, classes):
        super().__init__()
        self.flat, self.first = torch.nn.Flatten(), torch.nn.Linear(64, 64)
        self.again, self.last = self.first, torch.nn.Linear(64, classes)
        self.register_buffer("scale", torch.full((64,), 0.5))

    def forward(self, inputs):
        return self.last(self.again(torch.relu(self.first(self.flat(inputs) * self.scale))))


def test_buffers_and_tied_weights_are_in_the_state(data):
    scenario = hm.Scenario.load("tiny").override({**CHANGES, "learning.model": f"{__name__}:Tied"})
    run = hm.run(scenario, "uncoordinated", strategy="loop")
    model = Tied((1, 8, 8), 10)
    model.load_state_dict(state_dict(run, 1), strict=True)
    assert torch.equal(model.scale, torch.full((64,), 0.5))
    assert torch.equal(model.first.weight, run.parameters(1)["first.weight"])
    torch.testing.assert_close(model(data.test_inputs), trained_model(run, 1)(data.test_inputs))


def test_a_graph_gives_the_models_scores(folder, data, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run = hm.Run.load(folder)
    files = write_weights(run, tmp_path, "onnx")
    assert [file.name for file in files] == [f"device_{device}.onnx" for device in range(5)]
    for device in (0, 4):
        session = runtime.InferenceSession(files[device])
        for batch in (1, 7):
            inputs = data.test_inputs[:batch]
            (scores,) = session.run(["scores"], {"inputs": inputs.numpy()})
            expected = trained_model(run, device)(inputs).detach().numpy()
            np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    assert session.get_modelmeta().custom_metadata_map["device"] == "4"


def test_what_cannot_be_exported_is_a_sentence(folder, tmp_path, call, monkeypatch):
    run = hm.Run.load(folder)
    with pytest.raises(hm.TrainingError, match="device: expected 0 to 4, actual value 5"):
        state_dict(run, 5)
    bare = tmp_path / "bare"
    run.save(bare, weights=False)
    code, _, told = call("store", "export", bare, "--out", tmp_path / "models")
    assert (code, told.strip()) == (2, "error: run: its weights were not kept.")
    monkeypatch.setattr("heliomesh.interop.weights.find_spec", lambda name: None)
    code, _, told = call("store", "export", folder, "--out", tmp_path / "models", "--format", "onnx")
    assert code == 2
    assert "onnx is not installed. Run `pip install heliomesh[onnx]`." in told
    assert call("store", "export", tmp_path / "nowhere", "--out", tmp_path / "models")[0] == 2
