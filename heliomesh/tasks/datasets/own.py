"""The user's own data, at ``learning.path``: an `.npz` file or a folder of images.

- `.npz` with arrays train_inputs, train_labels, test_inputs, test_labels; inputs (sample, channel, height, width),
  (sample, height, width) or (sample, feature), labels 0 … C − 1. Pickled objects are refused.
- Folder with `train/<class>/*` and `test/<class>/*`: images of one size, all grey or all in colour. Classes are
  numbered in the alphabetical order of their folders in `train`. Hidden files are left out, all others are read.

Inputs are normalised by the mean and deviation of each channel or feature over the training samples.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from heliomesh.common.durable import npz_sizes
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits
from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import Dataset, DatasetError, dataset_from_arrays, normalised

ORIGIN = "a file or folder at learning.path"
_COPIES_BYTES = 12  # per number, besides the file's own: as float32, normalised, and copied
_ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")
_FORMATS = ("PNG", "JPEG", "BMP", "PPM")
_GREY, _COLOUR = ("1", "L"), ("P", "RGB")  # modes of Pillow that convert to 8 bits without loss

Array = npt.NDArray[Any]


def load(settings: Learning) -> Dataset:
    """Read the file or folder at ``settings.path``; raises DatasetError."""
    if settings.path is None:
        raise DatasetError("learning.path", "an .npz file or a folder of images", "value missing")
    path = Path(settings.path).expanduser()
    DatasetError.when(not path.exists(), "learning.path", "an existing file or folder", f"value {settings.path!r}")
    arrays, num_classes = _read_images(path) if path.is_dir() else (_read_npz(path), None)
    try:
        raw = dataset_from_arrays(path.stem, **arrays, num_classes=num_classes)
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None
    return _standardised(raw)


def _standardised(raw: Dataset) -> Dataset:
    """The same samples, normalised by the training samples' mean and deviation per channel or feature."""
    train, test = raw.train_inputs.numpy(), raw.test_inputs.numpy()
    axes = (0, *range(2, train.ndim))
    mean = tuple(map(float, train.mean(axes, dtype=np.float64)))
    std = tuple(float(s) or 1.0 for s in train.std(axes, dtype=np.float64))  # a constant channel becomes 0
    inputs = [normalised(part, mean, std) for part in (train, test)]
    return dataset_from_arrays(raw.name, inputs[0], raw.train_labels, inputs[1], raw.test_labels, raw.num_classes)


def _read_npz(path: Path) -> dict[str, Array]:
    try:
        sizes = npz_sizes(path)
    except Exception as error:  # a damaged archive may raise anything, even zlib.error
        raise DatasetError(path, "a complete .npz file or a folder of images", f": {error}") from None
    if any(name not in sizes for name in _ARRAYS):
        raise DatasetError(path, f"arrays {', '.join(_ARRAYS)}", f"arrays {', '.join(sizes) or 'none'}")
    num_bytes = sum(size.num_bytes + _COPIES_BYTES * size.entries for size in sizes.values())
    check_fits(str(path), num_bytes, DEFAULT_LIMIT_GIB, "use fewer samples or smaller types")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in _ARRAYS}
    except Exception as error:  # a damaged archive may raise anything, even zlib.error
        raise DatasetError(path, "plain arrays without pickled objects", f": {error}") from None


def _read_images(folder: Path) -> tuple[dict[str, Array], int]:
    """Arrays of all images, inputs (sample, channel, height, width) uint8, and the number of classes."""
    classes = _classes(folder / "train")
    for name in _classes(folder / "test"):
        expected = f"one of the classes in train ({', '.join(classes)})"
        DatasetError.when(name not in classes, folder / "test" / name, expected, f"class {name!r}")
    listed = {
        part: [(path, label) for label, name in enumerate(classes) for path in _visible(folder / part / name)]
        for part in ("train", "test")
    }
    for part, images in listed.items():
        DatasetError.when(not images, folder / part, "at least one image", "number 0")
    first = _read_image(listed["train"][0][0])
    num_bytes = 5 * sum(map(len, listed.values())) * first.size
    check_fits(str(folder), num_bytes, DEFAULT_LIMIT_GIB, "use fewer or smaller images")
    arrays: dict[str, Array] = {}
    for part, images in listed.items():
        arrays[f"{part}_inputs"] = np.stack([_read_image(path, first.shape) for path, _ in images])
        arrays[f"{part}_labels"] = np.array([label for _, label in images])
    return arrays, len(classes)


def _read_image(path: Path, shape: tuple[int, ...] | None = None) -> Array:
    """Pixels of one image; (channel, height, width) uint8. Refuses another shape than that of the first."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=_FORMATS) as image:
                mode, pixels = image.mode, np.asarray(image.convert("L" if image.mode in _GREY else "RGB"))
    except Exception as error:  # Pillow's readers raise many kinds for damaged files
        raise DatasetError(path, f"an image ({', '.join(_FORMATS)})", f": {error}") from None
    expected = "a grey or colour image of 8 bits without transparency"
    DatasetError.when(mode not in _GREY + _COLOUR, path, expected, f"mode {mode}")
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    expected = f"(channel, height, width) {shape} as in the first image"
    DatasetError.when(shape not in (None, pixels.shape), path, expected, f"shape {pixels.shape}")
    return pixels


def _classes(folder: Path) -> list[str]:
    DatasetError.when(not folder.is_dir(), folder, "a folder with one folder per class", ": no such folder")
    names = []
    for entry in _visible(folder):
        DatasetError.when(not entry.is_dir(), entry, "folders of classes only", ": a file")
        names.append(entry.name)
    return names


def _visible(folder: Path) -> Iterator[Path]:
    """Entries of a folder in alphabetical order; none if a class has no folder here."""
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    return (entry for entry in entries if not entry.name.startswith("."))
