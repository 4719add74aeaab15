"""One device on each core: its layers' gradients, and that threads leave no trace."""

import threading

import pytest
import torch
from torch import nn

from heliomesh.learning import scoring
from heliomesh.learning.moving_layers import channels_last, move_the_rest, moving_layers
from heliomesh.learning.stacked import Samples, flat_weights
from heliomesh.learning.stacked_graph import trace, with_fused_pools
from heliomesh.learning.strategies import cores, loop
from heliomesh.tasks.model import build_model

RATE, CLASSES = 0.05, 10
SHAPES = {"mlp": (1, 8, 8), "cnn": (1, 9, 10), "resnet18": (3, 8, 8)}

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a CPU")


def _networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Layers that are written out, in unusual shapes, each with the shape of its inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return {
            "dense": (nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)), (7,)),
            "dense without bias": (nn.Sequential(nn.Linear(7, 3, bias=False)), (7,)),
            "dense on lines": (nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)), (5, 6)),
            "rectangular": (
                nn.Sequential(nn.Conv2d(2, 4, (3, 2), (2, 1), (1, 2), (1, 3)), nn.Tanh(), nn.Flatten()),
                (2, 6, 5),
            ),
            "groups": (nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.ReLU(), nn.Flatten()), (4, 5, 5)),
            "partial windows": (
                nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten()),
                (1, 7, 8),
            ),
            "pooling with overlap": (
                nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten()),
                (1, 9, 9),
            ),
            "norms": (
                nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.GroupNorm(4, 4, affine=False), nn.Flatten()),
                (2, 4, 5),
            ),
            "a pool as the result": (nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.MaxPool2d(2)), (1, 4, 4)),
        }


@pytest.mark.parametrize("kind", _networks())
def test_a_step_is_autograds_gradient_times_the_rate(kind):
    model, shape = _networks()[kind]
    model = model.double()
    inputs = torch.randn(6, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    output = model(inputs)
    direction = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = torch.autograd.grad((output * direction).sum(), list(model.parameters()))
    own = {name: cores._copy(value).requires_grad_() for name, value in model.named_parameters()}
    layers = moving_layers(own, RATE)
    moved = with_fused_pools(trace(model, "cores")).run(layers, channels_last(inputs))
    torch.testing.assert_close(moved, output, rtol=1e-12, atol=1e-12)
    (moved * direction).sum().backward()
    move_the_rest(own.values(), RATE)
    for (name, before), slope in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(own[name].detach(), before.detach() - RATE * slope, rtol=1e-11, atol=1e-11)


def _task(name: str, dtype: torch.dtype, rows: int = 3) -> tuple[nn.Module, Samples, torch.Tensor, torch.Tensor]:
    """A shipped model, samples, a stack of weights and two minibatches of six for each row."""
    model, generator = build_model(name, SHAPES[name], CLASSES, 0), torch.Generator().manual_seed(3)
    inputs = torch.randn(20, *SHAPES[name], generator=generator).to(dtype)
    samples = Samples(inputs, torch.randint(0, CLASSES, (20,), generator=generator))
    weights = flat_weights(model).to(dtype).repeat(rows, 1)
    return model, samples, weights, torch.randint(0, 5, (rows, 2, 6), generator=generator)


@pytest.mark.parametrize("name", SHAPES)
def test_shipped_models_train_as_in_the_loop(name):
    model, samples, weights, batches = _task(name, torch.float64, rows=1)
    start, rows, trained = weights.clone(), torch.arange(1), []
    batches, samples = batches[:, :, :3], Samples(samples.inputs[:5], samples.labels[:5])
    for build in (loop.build, cores.build):
        own = weights.clone()
        losses = build(model).train(own, rows, batches, samples, RATE)
        trained.append((own - start, losses, build(model).evaluate(own, rows, samples).loss))
    for expected, actual in zip(*trained, strict=True):
        assert float((actual - expected).norm() / expected.norm()) <= 1e-10


def test_bits_do_not_depend_on_threads_or_on_a_rows_place_in_memory():
    model, samples, weights, batches = _task("cnn", torch.float32)
    found = []
    for threads, shift in ((1, 0), (2, 1), (3, 7)):
        memory = torch.zeros(weights.numel() + shift)  # rows begin at other multiples of four bytes
        own = memory[shift:].view_as(weights).copy_(weights)
        found.append((own, *_with_threads(threads, model, own, batches, samples)))
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert torch.equal(one, same)


def _with_threads(threads: int, model, weights, batches, samples) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of a slot and of all samples after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        losses = cores.build(model).train(weights, torch.arange(3), batches, samples, RATE)
        scores = cores.build(model).evaluate(weights, torch.arange(3), samples)
        assert torch.get_num_threads() == threads
        assert _threads_of_a_new_thread() == threads
    finally:
        torch.set_num_threads(before)
    return losses, scores.loss


def _threads_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_pieces_of_the_samples_add_up(monkeypatch):
    model, samples, weights, _ = _task("cnn", torch.float64)
    rows = torch.tensor([2, 0])
    whole = cores.build(model).evaluate(weights, rows, samples)
    monkeypatch.setitem(scoring._ONE_ROW_AT_ONCE, "cpu", 7)  # 7 + 7 + 6 samples
    parts = cores.build(model).evaluate(weights, rows, samples)
    torch.testing.assert_close(parts.loss, whole.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(parts.accuracy, whole.accuracy, rtol=0, atol=0)


def test_an_error_in_a_thread_is_raised_and_threads_come_back():
    model, samples, weights, batches = _task("cnn", torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(IndexError):
            cores.build(model).train(weights, torch.arange(3), batches + 20, samples, RATE)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
