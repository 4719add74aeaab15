import pytest
import torch
from torch import nn

from heliomesh.common import catalog
from heliomesh.learning.stacked import layout_of
from heliomesh.scenario.errors import ScenarioError
from heliomesh.tasks.model import MODEL_CATALOG, build_model

SHAPES = {"mlp": (1, 8, 8), "cnn": (1, 28, 28), "resnet18": (3, 32, 32)}
PARAMETERS = {"mlp": 4_810, "cnn": 1_663_370, "resnet18": 11_173_962}


def _own(factory, monkeypatch, **options) -> nn.Module:
    """A model from a user's factory, found as ``module:factory``."""
    monkeypatch.setattr(f"{__name__}.factory_under_test", factory, raising=False)
    return build_model(f"{__name__}:factory_under_test", (1, 8, 8), 10, 0, **options)


def _dense(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *layers, nn.Linear(16, 10))


@pytest.mark.parametrize("name", catalog.names(MODEL_CATALOG))
def test_every_model_of_the_catalog_is_built_trains_and_repeats(name):
    shape = SHAPES.get(name, (3, 32, 32))
    first, second = build_model(name, shape, 10, 3), build_model(name, shape, 10, 3)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other = build_model(name, shape, 10, 4)
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    nn.functional.cross_entropy(first(torch.randn(4, *shape)), torch.arange(4)).backward()
    assert all(parameter.grad is not None for parameter in first.parameters())


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_auto_chooses_by_size(name):
    model = build_model("auto", SHAPES[name], 10, 0)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


def test_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_model("mlp", (1, 8, 8), 10, 0)
    assert torch.equal(torch.rand(3), expected)


def test_a_users_factory_gets_shape_and_classes(monkeypatch):
    seen = []
    _own(lambda shape, classes: seen.append((shape, classes)) or _dense(), monkeypatch)
    assert seen == [((1, 8, 8), 10)]


@pytest.mark.filterwarnings("ignore:Lazy modules")  # some versions of torch call them new
def test_lazy_layers_are_initialised_from_the_stream(monkeypatch):
    first, second = (_own(lambda *_: nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), monkeypatch) for _ in range(2))
    assert torch.equal(first[1].weight, second[1].weight)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("auto", r"one of cnn, mlp, resnet18 or module:factory for inputs of 9×9.*actual value 'auto'"),
        ("cmn", r"expected auto, cnn, mlp, resnet18 or module:factory, actual value 'cmn'; did you mean 'cnn'\?"),
        ("no_such_module:build", "importable code as module:name.*ModuleNotFoundError.*no_such_module"),
        ("math:no_such_function", "importable code as module:name.*no_such_function"),
        ("math:pi", "names an object of type float"),
        ("math:gcd", "torch.nn.Module.*object of type int|raised TypeError"),
        ("builtins:print", "expected a torch.nn.Module.*nothing"),
    ],
)
def test_a_wrong_name_is_explained(name, sentence):
    with pytest.raises(ScenarioError, match=sentence) as caught:
        build_model(name, (1, 9, 9), 10, 0)
    assert caught.value.field == "learning.model"


class _FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(64, 10)

    def forward(self, x):
        return nn.functional.dropout(self.dense(x.flatten(1)), 0.5)


class _Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(64, 10)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.dense(x.flatten(1))


class _Stateful(nn.Module):
    """Changes an attribute in every forward pass."""

    def __init__(self):
        super().__init__()
        self.dense, self.calls = nn.Linear(64, 10), 0

    def forward(self, x):
        self.calls += 1
        return self.calls * self.dense(x.flatten(1))


class _Caching(_Stateful):
    """Fills an attribute in its first forward pass."""

    def forward(self, x):
        self.calls = 1
        return self.dense(x.flatten(1))


class _SeldomRandom(_FunctionalDropout):
    """Draws, but hardly ever does anything with it."""

    def forward(self, x):
        y = self.dense(x.flatten(1))
        return y * 0 if torch.rand(()) < 1e-9 else y


class _RandomInEvaluation(_FunctionalDropout):
    def forward(self, x):
        return nn.functional.dropout(self.dense(x.flatten(1)), 0.5, training=not self.training)


class _WiderInEvaluation(_FunctionalDropout):
    def forward(self, x):
        y = self.dense(x.flatten(1))
        return y if self.training else torch.cat([y, y], 1)


def _tied(by_data: bool) -> nn.Module:
    """Two layers with one weight: the Parameter itself, or another one on the same memory."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 10))
    model[3].weight = nn.Parameter(model[1].weight.data) if by_data else model[1].weight
    return model


def _frozen(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda *_: _Stateful(), "without randomness or memory in its forward pass"),
        (lambda *_: _SeldomRandom(), "without randomness"),
        (lambda *_: _RandomInEvaluation(), "without randomness"),
        (lambda *_: _WiderInEvaluation(), r"expected outputs of shape \[2, 10\].*\[2, 20\]"),
        (lambda *_: _tied(by_data=True), "memory of their own.*has '1.weight' and '3.weight' in the same memory"),
        (lambda *_: _frozen(_dense()), "expected a model with parameters to train.*frozen ones only"),
        (lambda *_: _dense(nn.BatchNorm1d(16)), "does not average running statistics.*GroupNorm.*2.running_mean"),
        (lambda *_: _Counting(), "changes 'calls' in training"),
        (lambda *_: _dense(nn.Dropout(0.1)), "without randomness.*p = 0.*random in '2'"),
        (lambda *_: _FunctionalDropout(), "without randomness"),
        (lambda *_: nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(10)), "actual value has no parameters"),
        (lambda *_: _dense().double(), "actual result RuntimeError"),
        (lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(64, 9)), r"expected outputs of shape \[2, 10\].*\[2, 9\]"),
        (lambda *_: nn.Linear(63, 10), r"takes inputs \[2, 1, 8, 8\]"),
        (lambda *_: nn.LSTM(8, 10), r"takes inputs|actual result an object of type tuple"),
    ],
)
def test_what_cannot_be_stacked_is_refused_with_its_reason(build, sentence, monkeypatch):
    with pytest.raises(ScenarioError, match=sentence) as caught:
        _own(build, monkeypatch)
    assert caught.value.field == "learning.model"
    assert "\n" not in str(caught.value)


def test_dropping_buffers_makes_batchnorm_stateless(monkeypatch):
    model = _own(lambda *_: _dense(nn.BatchNorm1d(16)), monkeypatch, buffers="drop")
    assert not list(model.buffers())
    batch = torch.randn(8, 1, 8, 8)
    assert torch.equal(model.train()(batch), model.eval()(batch))


def test_constant_buffers_are_welcome(monkeypatch):
    def build(*_):
        model = _dense()
        model.register_buffer("scale", torch.ones(3))
        return model

    assert dict(_own(build, monkeypatch).named_buffers())["scale"].tolist() == [1, 1, 1]


def test_a_dropout_that_drops_nothing_is_welcome(monkeypatch):
    _own(lambda *_: _dense(nn.Dropout(0.0)), monkeypatch)


def test_auto_takes_a_perceptron_for_feature_vectors():
    model = build_model("auto", (7,), 3, 0)
    assert model(torch.zeros(5, 7)).shape == (5, 3)
    with pytest.raises(
        ScenarioError, match=r"expected a model for inputs \[7\] and 3 classes, actual value 'cnn' raised"
    ):
        build_model("cnn", (7,), 3, 0)


def test_a_cache_that_is_filled_once_is_welcome(monkeypatch):
    assert _own(lambda *_: _Caching(), monkeypatch).calls == 1


def test_a_shared_parameter_is_one(monkeypatch):
    model = _own(lambda *_: _tied(by_data=False), monkeypatch)
    assert model[3].weight is model[1].weight
    assert layout_of(model).names == ("1.weight", "1.bias", "3.bias", "4.weight", "4.bias")


def test_the_model_comes_in_training_mode(monkeypatch):
    assert all(layer.training for layer in _own(lambda *_: _dense().eval(), monkeypatch).modules())
