"""Files arrive whole and right, or an error names what is wrong: downloads, archives, the cache and the search."""

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from heliomesh.tasks.dataset import DatasetError
from heliomesh.tasks.retrieval import source as source_module
from heliomesh.tasks.retrieval.archive import gunzip, untar
from heliomesh.tasks.retrieval.download import download, part_of
from heliomesh.tasks.retrieval.pinned import PinnedFile, silent
from heliomesh.tasks.retrieval.search import (
    cache_folder,
    is_cached,
    is_started,
    origin,
    require,
    retrieve,
    verify,
)
from heliomesh.tasks.retrieval.source import Address, Archive, DebianPackage, NpmPackage, Source, SystemFolder

CONTENT = {"images": bytes(range(256)) * 40, "labels": b"0123456789" * 20}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("HELIOMESH_DATA", str(folder))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "shared"))
    return folder


# a web server that can be told to misbehave


@dataclass
class Site:
    """Files by path, and what goes wrong."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cut_after: int | None = None  # bytes of each answer before the connection breaks
    shift: int = 0  # added to the first byte of each range
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""


@contextmanager
def serving(site):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def do_GET(self):
            wanted = self.headers.get("Range")
            site.requests.append((self.path, wanted))
            body = site.files.get(self.path.lstrip("/"))
            if body is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and site.ranges else 0
            if start >= len(body) > 0:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.end_headers()
                return
            self.send_response(206 if wanted and site.ranges else 200)
            if wanted and site.ranges:
                first = start + site.shift
                self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            self.wfile.write(body[start:][: site.cut_after])

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


def test_download_reports_progress_and_leaves_no_part(site, tmp_path):
    seen = []
    download(f"{site.address}/plain", tmp_path / "plain", 1 << 20, lambda *report: seen.append(report))
    assert (tmp_path / "plain").read_bytes() == CONTENT["images"]
    assert not part_of(tmp_path / "plain").exists()
    total = len(CONTENT["images"])
    assert seen[0] == ("plain", 0, total)
    assert seen[-1] == ("plain", total, total)


def test_download_goes_on_where_it_stopped(site, tmp_path):
    target = tmp_path / "plain"
    part_of(target).write_bytes(CONTENT["images"][:1000])
    download(f"{site.address}/plain", target, 1 << 20, silent)
    assert target.read_bytes() == CONTENT["images"]
    assert site.requests == [("/plain", "bytes=1000-")]


def test_download_that_breaks_off_resumes_by_itself(site, tmp_path):
    site.cut_after = 4000
    download(f"{site.address}/plain", tmp_path / "plain", 1 << 20, silent)
    assert (tmp_path / "plain").read_bytes() == CONTENT["images"]
    assert [wanted for _, wanted in site.requests] == [None, "bytes=4000-", "bytes=8000-"]


def test_download_that_never_ends_is_named_and_kept(site, tmp_path):
    site.cut_after = 100
    with pytest.raises(
        DatasetError, match=r"/plain: expected a complete download, actual: truncated after 400 of 102"
    ):
        download(f"{site.address}/plain", tmp_path / "plain", 1 << 20, silent)
    assert part_of(tmp_path / "plain").stat().st_size == 400
    assert not (tmp_path / "plain").exists()


def test_server_without_ranges_starts_over(site, tmp_path):
    site.ranges = False
    part_of(tmp_path / "plain").write_bytes(b"wrong beginning")
    download(f"{site.address}/plain", tmp_path / "plain", 1 << 20, silent)
    assert (tmp_path / "plain").read_bytes() == CONTENT["images"]


def test_part_that_is_complete_already(site, tmp_path):
    part_of(tmp_path / "plain").write_bytes(CONTENT["images"])
    download(f"{site.address}/plain", tmp_path / "plain", 1 << 20, silent)
    assert (tmp_path / "plain").read_bytes() == CONTENT["images"]


def test_part_that_is_too_long_starts_over(site, tmp_path):
    part_of(tmp_path / "plain").write_bytes(CONTENT["images"] + b"more")
    download(f"{site.address}/plain", tmp_path / "plain", 1 << 20, silent)
    assert (tmp_path / "plain").read_bytes() == CONTENT["images"]


def test_server_that_sends_another_range_is_refused(site, tmp_path):
    site.shift = 7
    part_of(tmp_path / "plain").write_bytes(CONTENT["images"][:1000])
    with pytest.raises(DatasetError, match="another range"):
        download(f"{site.address}/plain", tmp_path / "plain", 1 << 20, silent)


def test_download_refuses_too_much(site, tmp_path):
    with pytest.raises(DatasetError, match="expected at most 5000 bytes, actual: more"):
        download(f"{site.address}/plain", tmp_path / "plain", 5000, silent)
    assert list(tmp_path.iterdir()) == []


def test_missing_page_and_missing_server(site, tmp_path):
    with pytest.raises(DatasetError, match="HTTP status 404"):
        download(f"{site.address}/absent", tmp_path / "absent", 1 << 20, silent)
    with pytest.raises(DatasetError, match="Connection refused"):
        download("http://127.0.0.1:9/plain", tmp_path / "plain", 1 << 20, silent)


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


def test_untar_writes_wanted_members_only(tmp_path):
    path = packed(tmp_path / "a.tar.gz", ("top/images", b"abc"), ("top/readme", b"text"))
    folder = tmp_path / "out"
    folder.mkdir()
    untar(path, {"top/images": 3}, folder)
    assert [(file.name, file.read_bytes()) for file in folder.iterdir()] == [("images", b"abc")]


@pytest.mark.parametrize("name", ["../images", "top/../../images", "/etc/images"])
def test_untar_refuses_traversal(tmp_path, name):
    path = packed(tmp_path / "a.tar.gz", (name, b"abc"), ("top/images", b"abc"))
    with pytest.raises(DatasetError, match="expected members inside the archive's folder"):
        untar(path, {"top/images": 3, name: 3}, tmp_path)
    assert not (tmp_path / "images").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_untar_refuses_links_and_devices(tmp_path, kind):
    path = packed(tmp_path / "a.tar.gz", links=[("top/images", kind, "/etc/hostname")])
    with pytest.raises(DatasetError, match=r"expected plain files and folders only, actual member 'top/images'"):
        untar(path, {"top/images": 3}, tmp_path)


def test_untar_refuses_bombs(tmp_path):
    path = packed(tmp_path / "a.tar.gz", ("top/images", bytes(1 << 20)))
    with pytest.raises(DatasetError, match="expected at most 1000 bytes, actual: more"):
        untar(path, {"top/images": 1000}, tmp_path)
    path = packed(tmp_path / "b.tar.gz", ("top/other", bytes(32 << 20)), ("top/images", b"abc"))
    with pytest.raises(DatasetError, match="unpacks to more data than the dataset has"):
        untar(path, {"top/images": 3}, tmp_path)


def test_untar_refuses_a_header_that_claims_everything(tmp_path):
    info = tarfile.TarInfo("header")
    info.type, info.size = tarfile.XHDTYPE, 4 << 30  # read into memory by tarfile itself
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        file.write(info.tobuf())
        file.write(bytes(32 << 20))
    with pytest.raises(DatasetError, match="unpacks to more data than the dataset has"):
        untar(tmp_path / "a.tar.gz", {"top/images": 3}, tmp_path)


def test_untar_refuses_doubles_gaps_and_damage(tmp_path):
    path = packed(tmp_path / "a.tar.gz", ("top/images", b"abc"), ("top/images", b"abd"))
    with pytest.raises(DatasetError, match="expected one file 'top/images', actual: more than one"):
        untar(path, {"top/images": 3}, tmp_path)
    with pytest.raises(DatasetError, match="the member 'top/labels' is missing"):
        untar(path, {"top/labels": 3}, tmp_path)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DatasetError, match=r"a\.tar\.gz: expected a complete \.tar\.gz archive"):
        untar(path, {"top/images": 3}, tmp_path)
    path.write_bytes(b"no archive at all")
    with pytest.raises(DatasetError, match=r"expected a complete \.tar\.gz archive"):
        untar(path, {"top/images": 3}, tmp_path)


def test_gunzip_refuses_bombs_and_truncation(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(bytes(1 << 20)))
    with pytest.raises(DatasetError, match="expected at most 1000 bytes"):
        gunzip(path, tmp_path / "images", 1000)
    path.write_bytes(gzip.compress(CONTENT["images"])[:-9])
    with pytest.raises(DatasetError, match=r"images\.gz: expected a complete gzip file"):
        gunzip(path, tmp_path / "images", 1 << 20)


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


def online(site, name="official"):
    return Address(name, site.address, tuple(f"{file}.gz" for file in CONTENT), 1 << 20)


def unpack_toy(archive, folder):
    untar(archive, {f"top/{name}": len(body) for name, body in CONTENT.items()}, folder)


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("HELIOMESH_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "heliomesh"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "heliomesh"


def test_first_way_that_works_is_used_and_remembered(site, cache):
    source = toy(SystemFolder("toy"), online(site))
    found = retrieve(source)
    assert (found.folder, found.way, found.fetched, found.replaced) == (cache / "toy", "official", True, None)
    assert {name: (found.folder / name).read_bytes() for name in CONTENT} == CONTENT
    manifest = json.loads((found.folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["way"] == "official"
    assert manifest["files"]["images"] == {"bytes": 10240, "sha256": pinned("images").sha256}
    assert not any(entry.is_dir() for entry in found.folder.iterdir())
    num_requests = len(site.requests)
    again = retrieve(source)
    assert (again.way, again.fetched) == ("official", False)
    assert len(site.requests) == num_requests


def test_system_folder_comes_before_the_web(site, tmp_path):
    write_plain(tmp_path / "shared" / "datasets" / "toy")
    assert retrieve(toy(SystemFolder("toy"), online(site))).way == "system"
    assert site.requests == []


def test_chosen_way_only(site, tmp_path):
    write_plain(tmp_path / "shared" / "datasets" / "toy")
    source = toy(SystemFolder("toy"), online(site))
    assert retrieve(source, "official").way == "official"
    assert retrieve(source, "system").way == "system"  # even though the cache is right
    with pytest.raises(DatasetError, match="--from: expected one of system, official or an existing path, actual"):
        retrieve(source, "offical")


def test_given_folder_and_given_archive(tmp_path):
    folder = write_plain(tmp_path / "mine")
    assert retrieve(toy(), str(folder)).way == str(folder)
    path = packed(tmp_path / "renamed.tgz", *((f"top/{name}", body) for name, body in CONTENT.items()))
    right = Archive("toy.tgz", hashlib.sha256(path.read_bytes()).hexdigest(), unpack_toy)
    assert retrieve(toy(archives=(right,)), str(path)).way == str(path)
    wrong = Archive("toy.tgz", "0" * 64, unpack_toy)
    with pytest.raises(DatasetError, match=r"toy\.tgz: .*renamed\.tgz: expected sha256 0000.*, actual sha256"):
        retrieve(toy(archives=(wrong,)), str(path))
    with pytest.raises(DatasetError, match="expected a folder, actual: a file"):
        retrieve(toy(), str(path))


def test_folder_with_an_archive_and_folder_with_gaps(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    path = packed(folder / "toy.tgz", *((f"top/{name}", body) for name, body in CONTENT.items()))
    archive = Archive("toy.tgz", hashlib.sha256(path.read_bytes()).hexdigest(), unpack_toy)
    assert retrieve(toy(archives=(archive,)), str(folder)).fetched
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
    bad = Address("bad", f"{site.address}/bad", ("images.gz", "labels.gz"), 1 << 20)
    assert retrieve(toy(bad, online(site))).way == "official"


def test_damaged_unfinished_download_is_fetched_anew(site, cache):
    unfinished = cache / "toy" / "downloads" / "official" / "images.gz.part"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_bytes(b"x" * 10)
    assert retrieve(toy(online(site))).fetched
    assert [wanted for path, wanted in site.requests if path == "/images.gz"] == ["bytes=10-", None]


def test_interrupted_download_resumes_in_the_next_call(site, cache):
    site.cut_after = 20
    with pytest.raises(DatasetError, match="truncated"):
        retrieve(toy(online(site)))
    kept = (cache / "toy" / "downloads" / "official" / "images.gz.part").stat().st_size
    assert kept == 80
    site.cut_after = None
    assert retrieve(toy(online(site))).fetched
    assert ("/images.gz", f"bytes={kept}-") in site.requests


def test_one_message_lists_all_ways(site):
    site.files.clear()
    source = toy(SystemFolder("toy"), online(site), DebianPackage("no-such-package", "usr"), NpmPackage("x@1"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        with pytest.raises(DatasetError) as caught:
            retrieve(source)
    lines = str(caught.value).splitlines()
    assert lines[0] == "toy: expected one of these ways to work, actual: none did"
    for line, start in zip(lines[1:], ("system", "official", "debian", "npm", "heliomesh data get toy"), strict=True):
        assert line.startswith(f"  - {start}")
    assert "HTTP status 404" in lines[2]
    assert "apt-get is not installed" in lines[3]
    assert "npm pack --ignore-scripts x@1" in lines[4]


def program(folder, name, script):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def test_debian_package_is_unpacked_without_installing(tmp_path, monkeypatch):
    data = write_plain(tmp_path / "data")
    programs = tmp_path / "programs"
    program(programs, "apt-get", '[ "$1" = download ] && touch toy_1.deb')
    program(programs, "dpkg", f'[ "$1" = -x ] && mkdir -p "$3/usr/share" && cp {data}/* "$3/usr/share"')
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    assert retrieve(toy(DebianPackage("toy", "usr/share"))).way == "debian"


def test_npm_package_is_packed_without_scripts(tmp_path, monkeypatch):
    path = packed(tmp_path / "toy-1.tgz", *((f"top/{name}", body) for name, body in CONTENT.items()))
    archive = Archive("toy-1.tgz", hashlib.sha256(path.read_bytes()).hexdigest(), unpack_toy)
    program(tmp_path / "programs", "npm", f'[ "$1 $2" = "pack --ignore-scripts" ] && cp {path} .')
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    assert retrieve(toy(NpmPackage("toy@1"), archives=(archive,))).way == "npm"


def test_registry_command_that_fails_or_hangs_is_named(tmp_path, monkeypatch):
    program(tmp_path / "programs", "npm", "echo first >&2; echo no such package >&2; exit 3")
    program(tmp_path / "programs", "apt-get", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(DatasetError, match="npm failed with exit code 3: no such package"):
        retrieve(toy(NpmPackage("toy@1")))
    monkeypatch.setattr(source_module, "_COMMAND_SECOND", 0.2)
    with pytest.raises(DatasetError, match=r"apt-get did not end within 0\.2 s"):
        retrieve(toy(DebianPackage("toy", "usr")))


# the cache


@pytest.fixture
def cached(site):
    source = toy(online(site))
    retrieve(source)
    return source


def test_verify_names_the_damaged_file(cached, cache):
    assert verify(cached).way == "official"
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
    assert found.fetched
    assert "labels: expected 200 bytes, actual: truncated, 5 bytes" in found.replaced
    assert verify(cached)


def test_require_reports_the_way_it_used(site, caplog):
    source = toy(online(site))
    assert require(source).fetched
    assert "dataset toy: fetched by way 'official'" in caplog.text
    caplog.clear()
    assert not require(source).fetched
    assert caplog.text == ""


def test_files_put_into_the_cache_by_hand_are_used(cache):
    write_plain(cache / "toy")
    assert require(toy()).way == "unknown"
    (cache / "toy" / "manifest.json").write_text("[]", encoding="utf-8")
    assert origin(toy()) == "unknown"


def test_leftovers_of_a_killed_process_do_not_matter(cached, cache):
    leftover = cache / "toy" / "incoming" / "unpacked"
    leftover.mkdir(parents=True)
    (cache / "toy" / "images").unlink()
    assert retrieve(cached).fetched
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
    assert retrieve(cached).fetched is False
    assert require(cached).fetched is False


def test_processes_wait_for_each_other(site):
    source = toy(online(site))
    found = []
    threads = [threading.Thread(target=lambda: found.append(retrieve(source))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.fetched for result in found) == [False, False, False, True]
