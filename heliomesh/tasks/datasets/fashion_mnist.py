"""Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28×28 grey, 10 classes.

H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
arXiv:1708.07747. Pixels are divided by 255, then normalised by the training images' mean and deviation.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import Dataset, normalised
from heliomesh.tasks.retrieval.search import require
from heliomesh.tasks.retrieval.source import Address, Archive, Package, PinnedFile, Source, undeb

ORIGIN = "https://github.com/zalandoresearch/fashion-mnist"
SHAPE = (1, 28, 28)
CLASSES = 10
MEAN = (0.2860,)
STD = (0.3530,)

# The sums are those of the unpacked files: packages compress them anew, with other bytes.
_SUMS = {
    "train-images-idx3-ubyte": (47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    "train-labels-idx1-ubyte": (60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    "t10k-images-idx3-ubyte": (7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    "t10k-labels-idx1-ubyte": (10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
}
_DEBIAN = Archive(
    "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    "usr/share/datasets/fashion-mnist",
    undeb,
)
SOURCE = Source(
    name="fashion_mnist",
    files=tuple(PinnedFile(name, *known) for name, known in _SUMS.items()),
    ways=(
        Address("official", f"{ORIGIN}/raw/master/data/fashion", tuple(f"{name}.gz" for name in _SUMS)),
        Package("debian", ("apt-get", "download", "dataset-fashion-mnist")),
    ),
    archives=(_DEBIAN,),
)


def load(settings: Learning) -> Dataset:
    """Read the verified files; inputs (sample, 1, 28, 28)."""
    folder = require(SOURCE).folder
    return Dataset(SOURCE.name, *_read(folder, "train"), *_read(folder, "t10k"), num_classes=CLASSES)


def _read(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a part, behind headers of 16 and 8 bytes."""
    pixels = np.fromfile(folder / f"{part}-images-idx3-ubyte", np.uint8, offset=16).reshape(-1, *SHAPE)
    labels = np.fromfile(folder / f"{part}-labels-idx1-ubyte", np.uint8, offset=8).astype(np.int64)
    return torch.from_numpy(normalised(pixels, MEAN, STD, full_scale=255.0)), torch.from_numpy(labels)
