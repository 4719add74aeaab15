import importlib.util
import os

import pytest
import torch
from torch import nn

from heliomesh.common import catalog
from heliomesh.learning.stacked import Samples, flat_weights, layout_of
from heliomesh.learning.strategies import loop
from heliomesh.learning.strategy import STRATEGY_CATALOG
from heliomesh.scenario.errors import ScenarioError
from heliomesh.tasks.model import build_model

CLASSES, SAMPLES, ROWS, STEPS, BATCH = 3, 40, 4, 2, 5
TRITON = importlib.util.find_spec("triton") is not None and (
    torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Strategies add in different orders. In float32 a rounding difference switches one ReLU among ten thousand now and
# then, and training amplifies it; in float64 no such switch is near, so agreement can be asked to the last digits.
EXACT, DIGITS = torch.float64, 1e-12
_HERE = {"fused": TRITON, "cores": DEVICE.type == "cpu", "batched": DEVICE.type == "cpu"}
STRATEGIES = [
    pytest.param(name, marks=pytest.mark.skipif(not _HERE.get(name, True), reason="not on this device"))
    for name in catalog.names(STRATEGY_CATALOG)
]
EAGER = [param for param in STRATEGIES if param.values != ("fused",)]
CONVOLVING = [param for param in EAGER if param.values not in (("loop",), ("batched",))]
EXACTLY_ALONE = ("loop", "cores", "batched", "fused")  # whose bits do not depend on who else trains


def _skip_convolutions_of_batched(name: str, kind: str) -> None:
    if name == "batched" and kind != "mlp":
        pytest.skip("has no convolutions")


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.GroupNorm(4, after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.GroupNorm(4, after),
        )
        self.shortcut = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(4, after))

    def forward(self, x):
        y = self.shortcut(x)
        y = y + self.residual(x)
        return torch.relu(y)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(81, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),  # 9 → 4: the last line and column are left out
        nn.Conv2d(8, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
        nn.ReLU(),
        nn.Linear(10, CLASSES),
    )


def _resnet() -> nn.Module:
    stem = [nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.GroupNorm(4, 8), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)]
    return nn.Sequential(*stem, _Block(8, 8, 1), _Block(8, 16, 2), *head)


def _wide() -> nn.Module:
    """Two layers so wide that a slot of four steps writes their weights once."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(81, 64), nn.Tanh(), nn.Linear(64, 61), nn.Tanh(), nn.Linear(61, CLASSES)
    )


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(81, 81), nn.Tanh(), nn.Linear(81, 81), nn.Linear(81, CLASSES))
    model[3].weight = model[1].weight
    return model


def _frozen() -> nn.Module:
    """The first layer and a bias stay as they are."""
    model = _cnn()
    for parameter in (model[0].weight, model[0].bias, model[7].bias):
        parameter.requires_grad_(False)
    return model


class _WithSpare(nn.Module):
    """Has a layer that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.spare = nn.Linear(81, CLASSES), nn.Linear(2, 2)

    def forward(self, x):
        return self.dense(torch.flatten(x, 1))


MODELS = {"mlp": _mlp, "cnn": _cnn, "resnet": _resnet}
UNUSUAL = {"tied": _tied, "frozen": _frozen, "spare": _WithSpare, "wide": _wide}


def _model(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return (MODELS | UNUSUAL)[name]().to(DEVICE)


def _samples(dtype: torch.dtype = EXACT) -> Samples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 1, 9, 9, generator=generator).to(DEVICE, dtype)
    return Samples(inputs, torch.randint(0, CLASSES, (SAMPLES,), generator=generator).to(DEVICE))


def _weights(model: nn.Module, dtype: torch.dtype = EXACT) -> torch.Tensor:
    """Every row near the model's own parameters."""
    own = flat_weights(model).to(dtype)
    noise = torch.randn(ROWS, len(own), generator=torch.Generator().manual_seed(2))
    return own + 0.05 * noise.to(DEVICE, dtype)


def _slots(slots: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Who trains on what; everybody in every other slot."""
    generator = torch.Generator().manual_seed(4)
    drawn = []
    for slot in range(slots):
        rows = torch.randperm(ROWS, generator=generator)[: ROWS if slot % 2 else ROWS - 1]
        batches = torch.randint(0, SAMPLES, (len(rows), STEPS, BATCH), generator=generator)
        drawn.append((rows.to(DEVICE), batches.to(DEVICE)))
    return drawn


def _trained(strategy, model: nn.Module, slots: int, dtype: torch.dtype = EXACT) -> tuple[torch.Tensor, torch.Tensor]:
    weights, samples = _weights(model, dtype), _samples(dtype)
    losses = [strategy.train(weights, rows, batches, samples, 0.05) for rows, batches in _slots(slots)]
    return weights, torch.cat(losses)


def _difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def _build(name: str, model: nn.Module, **options):
    return catalog.find(STRATEGY_CATALOG, name).build(model, **options)


@pytest.mark.parametrize("kind", MODELS | UNUSUAL)
def test_the_loop_is_sgd_as_pytorch_has_it(kind):
    """Written with `torch.optim.SGD` and the model itself."""
    model = _model(kind).to(EXACT)
    weights, samples = _weights(model), _samples()
    expected = weights.clone()
    for rows, batches in _slots(3):
        for row, own in zip(rows.tolist(), batches, strict=True):
            nn.utils.vector_to_parameters(expected[row].clone(), model.parameters())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for batch in own:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(samples.inputs[batch]), samples.labels[batch]).backward()
                optimizer.step()
            expected[row] = nn.utils.parameters_to_vector(model.parameters()).detach()
    actual, _ = _trained(loop.build(_model(kind)), _model(kind), 3)
    assert _difference(actual, expected) <= DIGITS


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", EAGER)
def test_every_strategy_equals_the_loop(name, kind):
    _skip_convolutions_of_batched(name, kind)
    model = _model(kind)
    expected, expected_losses = _trained(loop.build(model), model, 20)
    actual, losses = _trained(_build(name, model), model, 20)
    assert _difference(actual, expected) <= DIGITS
    assert _difference(losses, expected_losses) <= DIGITS
    _check_scores(_build(name, model), model, expected, DIGITS)


def _check_scores(strategy, model: nn.Module, weights: torch.Tensor, digits: float) -> None:
    """Scores agree with the loop's, to the given number of digits in float64 and to rounding in float32."""
    rows, samples = torch.tensor([2, 0], device=DEVICE), _samples(weights.dtype)
    reference, scores = (one.evaluate(weights, rows, samples) for one in (loop.build(model), strategy))
    assert _difference(scores.loss, reference.loss) <= digits
    torch.testing.assert_close(scores.accuracy, reference.accuracy)


@pytest.mark.skipif(not TRITON, reason="needs Triton and a CUDA device")
@pytest.mark.parametrize("kind", MODELS)
def test_fused_kernels_equal_the_loop(kind):
    """In float32, their only type, and over one slot: nothing amplifies a ReLU that rounding switches."""
    model = _model(kind)
    expected, expected_losses = _trained(loop.build(model), model, 1, torch.float32)
    actual, losses = _trained(_build("fused", model), model, 1, torch.float32)
    start = _weights(model, torch.float32)
    assert _difference(actual - start, expected - start) <= 1e-2  # of the step; a wrong kernel is off by its length
    assert _difference(losses, expected_losses) <= 1e-4
    _check_scores(_build("fused", model), model, expected, 1e-5)


@pytest.mark.skipif(not TRITON, reason="needs Triton and a CUDA device")
def test_dense_layers_that_are_written_once_equal_the_loop():
    """Four steps: the fused strategy adds what earlier steps changed to products with the first weights."""
    model, samples = _model("wide"), _samples(torch.float32)
    generator = torch.Generator().manual_seed(5)
    batches = torch.randint(0, SAMPLES, (ROWS - 1, 4, BATCH), generator=generator).to(DEVICE)
    rows, moved = torch.tensor([3, 0, 2], device=DEVICE), []
    for name in ("loop", "fused"):
        weights = _weights(model, torch.float32)
        _build(name, model).train(weights, rows, batches, samples, 0.5)
        moved.append(weights - _weights(model, torch.float32))
    assert _difference(moved[1], moved[0]) <= 1e-4


@pytest.mark.parametrize("name", STRATEGIES)
def test_idle_rows_are_untouched(name):
    model = _model("mlp")
    weights = _weights(model, torch.float32)
    before = weights.clone()
    rows, batches = torch.tensor([2], device=DEVICE), torch.zeros(1, STEPS, BATCH, dtype=torch.int64, device=DEVICE)
    _build(name, model).train(weights, rows, batches, _samples(torch.float32), 0.05)
    assert [torch.equal(now, then) for now, then in zip(weights, before, strict=True)] == [True, True, False, True]


@pytest.mark.parametrize("name", STRATEGIES)
def test_nobody_active_is_nothing(name):
    model = _model("mlp")
    weights = _weights(model, torch.float32)
    before = weights.clone()
    nobody = torch.empty(0, dtype=torch.int64, device=DEVICE)
    losses = _build(name, model).train(weights, nobody, nobody.view(0, STEPS, 1), _samples(torch.float32), 0.05)
    assert losses.shape == (0,)
    assert torch.equal(weights, before)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_who_else_is_in_the_stack_does_not_matter(name, kind):
    _skip_convolutions_of_batched(name, kind)
    if name == "fused" and DEVICE.type == "cpu":
        pytest.skip("interpreted kernels take seconds, and each position is a program of its own")
    dtype = torch.float32 if name in EXACTLY_ALONE else EXACT
    model, samples = _model(kind), _samples(dtype)
    rows, batches = _slots(2)[1]
    together, apart, strategy = _weights(model, dtype), _weights(model, dtype), _build(name, model)
    strategy.train(together, rows, batches, samples, 0.05)
    for row, batch in zip(rows, batches, strict=True):
        strategy.train(apart, row[None], batch[None], samples, 0.05)
    # PyTorch's stacked products may be rounded by their place in memory, so `choose` takes none of them on a CPU
    assert torch.equal(together, apart) if name in EXACTLY_ALONE else _difference(together, apart) <= DIGITS


@pytest.mark.parametrize("name", STRATEGIES)
def test_bf16_learns_in_the_same_direction(name):
    if DEVICE.type == "cpu" and name == "fused":
        pytest.skip("the interpreter has no bfloat16 products")
    if name in ("cores", "batched"):
        pytest.skip("refuses bf16")
    model = _model("mlp")
    exact, _ = _trained(loop.build(model), model, 4, torch.float32)
    rounded, losses = _trained(_build(name, model, precision="bf16"), model, 4, torch.float32)
    start = _weights(model, torch.float32)
    moved, expected = rounded - start, exact - start
    assert torch.cosine_similarity(moved.flatten(), expected.flatten(), 0) > 0.99
    assert losses.isfinite().all()
    assert rounded.dtype is torch.float32


def test_global_switches_come_back():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    model = _model("mlp")
    _trained(_build("vmap", model, precision="tf32"), model, 1)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


class _Reshapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(81, CLASSES)

    def forward(self, x):
        return self.dense(x.reshape(-1, 81))


class _Scaled(_Reshapes):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.dense(torch.flatten(x, 1)) * self.scale


class _Branches(_Reshapes):
    def forward(self, x):
        return self.dense(torch.flatten(x, 1)) if x.sum() > 0 else self.dense(torch.flatten(-x, 1))


@pytest.mark.parametrize(
    ("name", "model", "reason"),
    [
        ("cores", _Scaled(), "uses 'scale' outside a layer"),
        ("cores", _Branches(), "cannot be traced"),
        ("cores", nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(81, 3)), "'0' of type BatchNorm2d"),
        ("fused", nn.Sequential(nn.Conv2d(1, 4, 3, dilation=2), nn.Flatten()), "grouped, dilated or not square"),
        ("fused", nn.Sequential(nn.GroupNorm(3, 6), nn.Flatten()), "6 channels in 3 groups, not powers of two"),
        ("fused", nn.Sequential(nn.Flatten(), *[nn.Linear(81, 81)] * 2), "uses a layer twice"),
        ("cores", nn.Sequential(nn.Flatten(), *[nn.Linear(81, 81)] * 2), "uses a layer twice"),
        ("cores", _Reshapes(), "calls 'reshape', which is not known to treat samples one by one"),
        ("cores", nn.Linear(2, 2, device="meta"), "is not in the memory of a CPU"),
        ("batched", nn.Linear(2, 2, device="meta"), "is not in the memory of a CPU"),
        ("batched", nn.Sequential(nn.Flatten(), *[nn.Linear(81, 81)] * 2), "uses a layer twice"),
        ("batched", nn.Sequential(nn.GroupNorm(3, 6), nn.Flatten()), "has a layer of type GroupNorm"),
    ],
)
def test_what_a_strategy_cannot_execute_is_refused_in_one_sentence(name, model, reason):
    with pytest.raises(ScenarioError, match=r"^learning\.strategy: expected a model and options that") as caught:
        _build(name, model)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", catalog.names(STRATEGY_CATALOG))
def test_an_unknown_precision_is_refused(name):
    with pytest.raises(
        ScenarioError, match=r"^learning\.precision: expected one of fp32, tf32, bf16, actual value 'int8'"
    ):
        _build(name, _model("mlp"), precision="int8")


@pytest.mark.parametrize("name", ["cores", "batched"])
def test_some_strategies_refuse_bf16(name):
    with pytest.raises(ScenarioError, match=f"'{name}' can execute, actual value precision = bf16"):
        _build(name, _model("mlp"), precision="bf16")


@pytest.mark.parametrize("name", CONVOLVING)
def test_convolutions_of_every_shape(name):
    """Rectangular, strided, dilated and padded unevenly."""
    shape = {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 3)}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Conv2d(1, 4, **shape), nn.Tanh(), nn.Flatten(), nn.Linear(200, CLASSES)).to(DEVICE)
    expected, _ = _trained(loop.build(model), model, 2)
    actual, _ = _trained(_build(name, model), model, 2)
    assert _difference(actual, expected) <= DIGITS


class _Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filters, self.dense = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 81, CLASSES)

    def forward(self, x):
        y = torch.relu(self.filters(x))
        return self.dense(y.view(len(y), -1))


def test_the_loop_leaves_images_in_the_order_that_a_model_relies_on():
    """A view of images whose channels come last would fail."""
    model = _Views().to(DEVICE)
    expected, _ = _trained(_build("vmap", model), model, 2)
    strategy = loop.build(model)
    actual, _ = _trained(strategy, model, 2)
    assert _difference(actual, expected) <= DIGITS
    assert strategy.evaluate(actual, torch.arange(2, device=DEVICE), _samples()).loss.isfinite().all()


@pytest.mark.parametrize("name", EAGER)
def test_every_strategy_takes_feature_vectors(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))
    samples = Samples(torch.randn(40, 7, dtype=EXACT), torch.arange(40) % 3)
    rows, batches = torch.tensor([2, 0]), torch.arange(24).view(2, 3, 4)
    trained = []
    for strategy in (loop.build(model), _build(name, model)):
        weights = flat_weights(model).to(EXACT).repeat(3, 1)
        losses = strategy.train(weights, rows, batches, samples, 0.05)
        trained.append((weights, losses, strategy.evaluate(weights, rows, samples).loss))
    for expected, actual in zip(*trained, strict=True):
        assert _difference(actual, expected) <= DIGITS


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("name", STRATEGIES)
def test_unusual_parameters_train_as_in_the_loop_or_are_refused(name, kind):
    model = _model(kind)
    expected, _ = _trained(loop.build(model), model, 4)
    traced = ("fused", "cores", "batched")
    if kind == "frozen":
        _skip_convolutions_of_batched(name, kind)
    if (kind, name) in {*(("tied", one) for one in traced), ("frozen", "fused")}:
        with pytest.raises(ScenarioError, match=r"^learning\.strategy: .*(shares the parameter|frozen parameter)"):
            _build(name, model)
        return
    actual, _ = _trained(_build(name, model), model, 4)
    assert _difference(actual, expected) <= 1e-5


@pytest.mark.parametrize("name", ["loop", *CONVOLVING])
def test_frozen_parameters_do_not_move(name):
    model = _model("frozen")
    layout, before = layout_of(model), _weights(model)
    after, _ = _trained(_build(name, model), model, 3)
    was, now = layout.views(before), layout.views(after)
    assert layout.frozen == {"0.weight", "0.bias", "7.bias"}
    assert [key for key in layout.names if torch.equal(was[key], now[key])] == ["0.weight", "0.bias", "7.bias"]


class _Louder(_Reshapes):
    """Computes otherwise in evaluation."""

    def forward(self, x):
        y = self.dense(torch.flatten(x, 1))
        return y if self.training else 10 * y


@pytest.mark.parametrize("name", ["loop", "vmap"])
def test_scores_are_of_the_model_in_evaluation_mode_and_steps_of_training_mode(name):
    model, samples, rows = _Louder().to(DEVICE), _samples(), torch.arange(ROWS, device=DEVICE)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(81, CLASSES)).to(DEVICE)
    weights = _weights(model)
    for _ in range(2):  # training after an evaluation too
        expected, actual = weights.clone(), weights.clone()
        batches = _slots(2)[1][1]
        loop.build(plain).train(expected, rows, batches, samples, 0.05)
        strategy = _build(name, model)
        louder = weights.clone() * 10
        scores = strategy.evaluate(weights, rows, samples)
        torch.testing.assert_close(scores.loss, loop.build(plain).evaluate(louder, rows, samples).loss)
        strategy.train(actual, rows, batches, samples, 0.05)
        assert _difference(actual, expected) <= 1e-5


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a CPU")
def test_batched_leaves_frozen_layers_alone():
    model = _model("mlp")
    model[1].bias.requires_grad_(False)
    model[3].weight.requires_grad_(False)
    expected, _ = _trained(loop.build(model), model, 3)
    actual, _ = _trained(_build("batched", model), model, 3)
    assert _difference(actual, expected) <= DIGITS


def test_batched_rounds_a_row_alike_in_every_piece_and_on_every_number_of_threads():
    """As the digits have it: 70 rows of the shipped perceptron, alone, by threes, and all at once on two threads."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = build_model("mlp", (1, 8, 8), 10, 0)
        samples = Samples(torch.rand(300, 1, 8, 8), torch.randint(10, (300,)))
        batches = torch.randint(300, (70, 3, 32))
        first = flat_weights(model) + 0.01 * torch.randn(70, 4810)
    strategy, results, threads = _build("batched", model), [], torch.get_num_threads()
    try:
        for size, number in ((70, 1), (70, 2), (3, 1), (1, 2)):
            torch.set_num_threads(number)
            weights, losses, scores = first.clone(), [], []
            for rows in torch.arange(70).split(size):
                losses.append(strategy.train(weights, rows, batches[rows], samples, 0.05))
                scores.append(strategy.evaluate(weights, rows, samples).loss)
            results.append(torch.cat([weights, torch.cat(losses)[:, None], torch.cat(scores)[:, None]], 1))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], other) for other in results[1:])
    assert not torch.equal(results[0][:, :4810], first)


@pytest.mark.parametrize("name", ["fused", "cores", "batched"])
def test_a_model_that_evaluates_otherwise_is_refused_where_it_is_traced(name):
    with pytest.raises(ScenarioError, match="computes otherwise in evaluation than in training"):
        _build(name, _Louder())
