import pytest
import torch
from torch import nn

from heliomesh.learning import strategy as choosing
from heliomesh.learning.stacked import Samples, flat_weights
from heliomesh.learning.strategies import loop
from heliomesh.learning.strategy import Chosen, choose, new_weights
from heliomesh.scenario.errors import ScenarioError
from heliomesh.tasks.model import build_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, STEPS, BATCH = 6, 2, 8


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELIOMESH_DATA", str(tmp_path))


def _samples() -> Samples:
    generator = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(50, 1, 8, 8, generator=generator), torch.randint(0, 10, (50,), generator=generator)
    return Samples(inputs.to(DEVICE), labels.to(DEVICE))


def _model() -> nn.Module:
    return build_model("mlp", (1, 8, 8), 10, 0).to(DEVICE)


def _chosen(strategy: str = "auto", model: nn.Module | None = None) -> Chosen:
    return choose(model or _model(), _samples(), STEPS, BATCH, "fp32", strategy)


def _train(strategy, device: torch.device = DEVICE) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and losses after a slot of all rows but one."""
    weights = flat_weights(_model()).repeat(ROWS, 1).to(device)
    rows = torch.tensor([4, 0, 1, 5, 3], device=device)
    batches = torch.randint(0, 50, (5, STEPS, BATCH), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    return weights, strategy.train(weights, rows.to(device), batches, _samples(), 0.1)


def test_on_a_cpu_the_choice_follows_from_the_model():
    samples = Samples(_samples().inputs.cpu(), _samples().labels.cpu())
    chosen = choose(_model().cpu(), samples, STEPS, BATCH)
    assert chosen.setting == "batched:eager"


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filters, self.dense = nn.Conv2d(1, 2, 3), nn.Linear(72, 10)

    def forward(self, x):
        y = torch.flatten(self.filters(x), 1)
        return self.dense(y if y.sum() > 0 else -y)


@pytest.mark.parametrize(
    ("model", "precision", "expected"),
    [
        (build_model("cnn", (1, 8, 8), 10, 0), "fp32", "cores"),
        (build_model("cnn", (1, 8, 8), 10, 0), "bf16", "loop"),
        (_Branches(), "fp32", "loop"),
    ],
)
def test_on_a_cpu_networks_with_convolutions_train_on_all_cores_where_they_can(model, precision, expected):
    samples = Samples(_samples().inputs.cpu(), _samples().labels.cpu())
    assert choose(model, samples, STEPS, BATCH, precision).setting == f"{expected}:eager"


def test_the_choice_computes_what_the_loop_computes():
    expected, expected_losses = _train(loop.build(_model()))
    actual, losses = _train(_chosen())
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-5, atol=1e-6)
    rows = torch.arange(ROWS, device=DEVICE)
    scores, reference = (one.evaluate(actual, rows, _samples()) for one in (_chosen(), loop.build(_model())))
    torch.testing.assert_close(scores.loss, reference.loss, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pieces", [1, 2, 3, 64])
def test_results_do_not_depend_on_pieces(pieces):
    whole, losses = _train(_chosen())
    other = _chosen()
    other.rows_at_once = pieces
    in_pieces, their_losses = _train(other)
    if DEVICE.type == "cpu":
        assert torch.equal(in_pieces, whole)
        assert torch.equal(their_losses, losses)
    torch.testing.assert_close(in_pieces, whole, rtol=1e-5, atol=1e-6)


class _Small:
    """A strategy that has memory for two rows."""

    def __init__(self) -> None:
        self.inner = loop.build(_model())
        self.sizes: list[int] = []

    def train(self, weights, rows, batches, samples, learning_rate):
        self.sizes.append(len(rows))
        if len(rows) > 2:
            raise torch.cuda.OutOfMemoryError
        return self.inner.train(weights, rows, batches, samples, learning_rate)


def test_pieces_are_halved_until_they_fit():
    small = _Small()
    chosen = Chosen(small, "small", DEVICE, rows_at_once=8)
    weights, losses = _train(chosen)
    expected, expected_losses = _train(loop.build(_model()))
    assert torch.equal(weights, expected)
    assert torch.equal(losses, expected_losses)
    assert small.sizes == [5, 4, 2, 2, 1]


def test_a_batch_too_large_for_the_memory_is_refused():
    class Never(_Small):
        def train(self, *_, **__):
            raise torch.cuda.OutOfMemoryError

    with pytest.raises(ScenarioError, match=r"^learning\.batch: expected one batch to fit into the memory of"):
        _train(Chosen(Never(), "never", DEVICE, rows_at_once=4))


def test_what_cannot_execute_the_model_is_passed_over(monkeypatch):
    """As on a GPU, whose first two choices are missing here or refuse."""
    monkeypatch.setattr(choosing, "_by_preference", lambda model, device: ("fused", "cores", "loop"))
    assert _chosen(model=_Branches()).setting == "loop:eager"


@pytest.mark.parametrize("strategy", ["loop", "vmap", "vmap:eager"])
def test_a_named_strategy_is_taken(strategy):
    chosen = _chosen(strategy)
    assert chosen.setting == f"{strategy.removesuffix(':eager')}:eager"
    expected, _ = _train(loop.build(_model()))
    torch.testing.assert_close(_train(chosen)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "hint"),
    [
        ("lopp", "did you mean 'loop'?"),
        ("loop:fast", "actual value 'loop:fast'"),
        ("vmap:compiled", "vmap:compiled"),
        ("", "''"),
    ],
)
def test_an_unknown_strategy_is_refused(strategy, hint):
    with pytest.raises(
        ScenarioError, match=r"^learning\.strategy: expected auto or one of batched, cores, fused, loop"
    ) as caught:
        _chosen(strategy)
    assert hint in str(caught.value)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ScenarioError, match=r"^learning\.precision: expected one of fp32, tf32, bf16"):
        choose(_model(), _samples(), STEPS, BATCH, "half")  # type: ignore[arg-type]


def test_weights_live_where_they_fit():
    weights = new_weights(3, 7, DEVICE)
    assert weights.shape == (3, 7)
    assert weights.device.type == DEVICE.type


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
def test_weights_beside_the_cpu_visit_the_device():
    expected, expected_losses = _train(loop.build(_model()))
    chosen = _chosen()
    chosen.rows_at_once = 2
    weights, losses = _train(chosen, torch.device("cpu"))
    torch.testing.assert_close(weights, expected.cpu(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-5, atol=1e-6)
