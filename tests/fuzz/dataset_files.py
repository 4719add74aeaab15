"""Datasets: arrays and folders of images of the user's own, gzipped idx files, and archives."""

import gzip
import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from heliomesh.tasks.datasets.fashion_mnist import SOURCE
from tests.fuzz.mutation import Rng, spoiled_arrays, spoiled_bytes
from tests.fuzz.run_folders import SETTINGS

_ARRAYS = {
    "train_inputs": np.random.default_rng(0).random((24, 1, 8, 8)).astype(np.float32),
    "train_labels": np.arange(24) % 3,
    "test_inputs": np.random.default_rng(1).random((6, 1, 8, 8)).astype(np.float32),
    "test_labels": np.arange(6) % 3,
}


def own_arrays(rng: Rng, originals: Path, place: Path) -> list[str]:
    """An `.npz` file of the user's."""
    file = place / "own.npz"
    if rng.random() < 0.7:
        np.savez(file, **spoiled_arrays(rng, _ARRAYS))
    else:
        np.savez_compressed(file, **_ARRAYS)
    if rng.random() < 0.3:
        file.write_bytes(spoiled_bytes(rng, file.read_bytes()))
    if rng.random() < 0.05:
        _promise_too_much(file)
    return _train(originals, place, file)


def _promise_too_much(file: Path) -> None:
    """An array whose header speaks of terabytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 1, 10**3, 10**3)}
    )
    with zipfile.ZipFile(file, "w") as archive:
        for name in _ARRAYS:
            archive.writestr(f"{name}.npy", header.getvalue() + b"\0" * 64)


def image_folder(rng: Rng, originals: Path, place: Path) -> list[str]:
    """A folder of small images in several formats, one of them damaged or out of place."""
    folder = place / "images"
    size, mode = (8, 8), "L" if rng.random() < 0.5 else "RGB"
    suffix = ["png", "jpg", "bmp", "ppm"][rng.integers(4)]
    for part, count in (("train", 8), ("test", 2)):
        for name in ("a", "b"):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                _image(rng, mode, size).save(folder / part / name / f"{number}.{suffix}")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for _ in range(rng.integers(1, 3)):
        _damage_image(rng, files[rng.integers(len(files))])
    return _train(originals, place, folder)


def _image(rng: Rng, mode: str, size: tuple[int, int]) -> Image.Image:
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
    return Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8))


def _damage_image(rng: Rng, file: Path) -> None:
    if not file.is_file():
        return
    match rng.integers(8):
        case 0:
            file.unlink()
            file.mkdir()
        case 1:
            _image(rng, "L", (9, 8)).save(file)
        case 2:
            _image(rng, "RGB", (8, 8)).convert("RGBA").save(file, format="PNG")
        case 3:
            Image.new("1", (20_000, 20_000)).save(file, format="PNG")  # far more pixels than bytes
        case 4:
            shutil.rmtree(file.parent)
        case 5:
            (file.parent.parent / "c").mkdir(exist_ok=True)
        case _:
            file.write_bytes(spoiled_bytes(rng, file.read_bytes()))


def packed_idx(rng: Rng, originals: Path, place: Path) -> list[str]:
    """Gzipped idx files under the names of a known dataset: they are never the pinned ones."""
    folder = place / "idx"
    folder.mkdir()
    for pinned in SOURCE.files:
        content = bytes(int(rng.integers(1, 2000)))
        if rng.random() < 0.1:
            content = bytes(pinned.num_bytes + 1)  # one byte too many
        packed = gzip.compress(content, compresslevel=1)
        (folder / f"{pinned.name}.gz").write_bytes(packed if rng.random() < 0.3 else spoiled_bytes(rng, packed))
    files = sorted(folder.iterdir())
    if rng.random() < 0.2:
        files[rng.integers(len(files))].unlink()
    return ["data", "get", "fashion_mnist", "--from", str(folder), "--quiet"]


def archive(rng: Rng, originals: Path, place: Path) -> list[str]:
    """An archive that is given as a known one and never is: whole, damaged, or no archive at all."""
    file = place / "data.tar.gz"
    with tarfile.open(file, "w:gz") as packed:
        member = tarfile.TarInfo("package/data_batch_1.png")
        member.size = 300
        packed.addfile(member, io.BytesIO(rng.bytes(300)))
    if rng.random() < 0.7:
        file.write_bytes(spoiled_bytes(rng, file.read_bytes()))
    return ["data", "get", "cifar10", "--from", str(file), "--quiet"]


def _train(originals: Path, place: Path, path: Path) -> list[str]:
    own = ["--set", "learning.dataset=own", "--set", f"learning.path={path}"]
    out = ["--out", str(place / "run"), "--quiet", "--json"]
    return ["run", "tiny", "--trace", str(originals / "trace.npz"), *SETTINGS, *own, *out]
