"""`heliomesh data`: what it prints, and one sentence with exit code 2 for every mistake."""

import hashlib
import json
from functools import partial

import numpy as np
import pytest

from heliomesh.tasks.datasets import fashion_mnist
from heliomesh.tasks.retrieval.source import Address, PinnedFile, Source

CONTENT = b"sixteen bytes do"


@pytest.fixture(autouse=True)
def small_source(tmp_path, monkeypatch):
    """A small dataset in the place of Fashion-MNIST, behind an address on this disk; the cache is empty."""
    pinned = PinnedFile("images", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    folder = tmp_path / "site"
    address = Address("official", folder.as_uri(), ("images",))
    monkeypatch.setattr(fashion_mnist, "SOURCE", Source("fashion_mnist", (pinned,), (address,)))
    monkeypatch.setenv("HELIOMESH_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")
    folder.mkdir()
    (folder / "images").write_bytes(CONTENT)
    return folder


@pytest.fixture
def run(call):
    """Call `heliomesh data`."""
    return partial(call, "data")


def test_list_shows_every_dataset(run, tmp_path):
    code, out, _ = run("list")
    assert code == 0
    for name in ("cifar10", "digits", "fashion_mnist", "own", "synthetic"):
        assert name in out
    run("get", "fashion_mnist")
    rows = {row["name"]: row for row in json.loads(run("list", "--json")[1])}
    assert rows["fashion_mnist"] == {
        "name": "fashion_mnist",
        "bytes": 16,
        "present": True,
        "where": str(tmp_path / "cache" / "fashion_mnist"),
    }
    assert rows["digits"]["present"] is True
    assert rows["cifar10"]["present"] is False


def test_get_says_which_way_it_used(run):
    code, out, err = run("get", "fashion_mnist", "digits")
    assert (code, err) == (0, "")
    assert out.startswith("fashion_mnist: got by way 'official', sha256 right, 16 B in ")
    assert "digits: nothing to fetch or verify, bundled with scikit-learn\n" in out
    assert run("get", "fashion_mnist")[1].startswith("fashion_mnist: in the cache, sha256 right")


def test_get_from_a_folder_as_json(run, small_source):
    facts = json.loads(run("get", "fashion_mnist", "--from", str(small_source), "--json")[1])
    assert facts[0]["way"] == str(small_source)
    assert facts[0]["sha256"] == {"images": hashlib.sha256(CONTENT).hexdigest()}


def test_get_replaces_a_damaged_file_and_says_so(run, tmp_path):
    run("get", "fashion_mnist")
    (tmp_path / "cache" / "fashion_mnist" / "images").write_bytes(b"x")
    assert "replaced what was wrong: " in run("get", "fashion_mnist")[1]


def test_verify_checks_what_is_here(run, tmp_path):
    assert run("verify")[:2] == (0, f"nothing to verify in {tmp_path / 'cache'}\n")
    run("get", "fashion_mnist")
    assert run("verify")[1].startswith("fashion_mnist: in the cache, sha256 right")
    assert json.loads(run("verify", "synthetic", "--json")[1]) == [
        {"name": "synthetic", "origin": "made on the spot"}
    ]
    path = tmp_path / "cache" / "fashion_mnist" / "images"
    path.write_bytes(CONTENT.upper())
    code, _, err = run("verify")
    assert code == 2
    assert err.startswith(f"error: {path}: expected sha256 ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("get", "fashion-mnist"), "dataset: expected one of cifar10, digits, fashion_mnist, own, synthetic, actual"),
        (
            ("get", "fashion_mnist", "--from", "nowhere"),
            "--from: expected one of official or an existing path, actual",
        ),
        (
            ("get", "digits", "--from", "official"),
            "--from: expected no value for 'digits', which has no files, actual",
        ),
        (("verify", "nonesuch"), "dataset: expected one of "),
        (("verify", "fashion_mnist"), ""),
    ],
)
def test_mistakes_are_one_sentence(run, arguments, sentence):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {sentence}")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_all_ways_are_listed_when_none_works(run, small_source):
    (small_source / "images").unlink()
    code, _, err = run("get", "fashion_mnist")
    assert code == 2
    assert err.startswith(
        "error: fashion_mnist: expected one of these ways to work, actual: none did\n  - official ("
    )
    assert "--from FOLDER" in err


def test_split_counts_the_labels_of_every_device(run):
    arguments = ("split", "tiny", "--set", "learning.partition=shards", "--seed", "3")
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    assert "digits, shards, 5 devices, seed 3" in out
    counts = np.array(json.loads(run(*arguments, "--json")[1])["samples"])
    assert counts.shape == (5, 10)
    assert (counts == 0).any(), "shards leave classes out"
    assert str(counts[0].sum()) in out
    assert f"{counts.sum()} training samples on 5 devices" in out
