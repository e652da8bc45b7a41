"""Downloads from a local server that can be told to fail."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from perdure.data import DataError, fetch, load, locate

from .small import NAMES, Small, make, put


class Server(ThreadingHTTPServer):
    """Sends files by name, intact or not, and records the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {
            path.rpartition("/")[2]: make(name).files[path]
            for name in NAMES
            for path in make(name).paths(0)
        }
        self.requested: list[str] = []
        self.behaviour = "intact"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.server.requested.append(name)
        data, behaviour = self.server.files[name], self.server.behaviour
        if behaviour.isdigit():
            self.send_error(int(behaviour))
            return
        self.send_response(200)
        if behaviour == "large":
            self.send_header("Content-Length", str(2**40))
        elif behaviour != "endless":
            self.send_header("Content-Length", str(len(data)))
        if behaviour == "endless":
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(bytes(2**20))
            return
        if behaviour == "encoded":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if behaviour == "corrupt":
            data = bytes(len(data))
        self.wfile.write(data[: len(data) // 2] if behaviour == "truncated" else data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server
        server.shutdown()


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", NAMES)
def test_downloaded_files_can_be_loaded(name: str, server: Server, tmp_path: Path) -> None:
    small = make(name)
    root = tmp_path / "a" / "b"
    assert fetch(small.spec, root, url=server.url, progress=False) == locate(small.spec, root)
    assert files(root) == sorted(root / path for path in small.paths(0))
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in files(root))
    assert small.same(load(small.spec, root))
    assert len(server.requested) == len(small.paths(0))


def test_the_default_folder_is_the_cache(server: Server, cache: Path) -> None:
    small = make("cifar10")
    place = fetch(small.spec, url=server.url + "/", progress=False)
    assert place == cache / "cifar-10-python.tar.gz"
    assert small.same(load(small.spec))


def test_a_damaged_copy_is_replaced_where_it_is_found(
    server: Server, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = make("cifar10")
    monkeypatch.setenv("PERDURE_DATA", str(tmp_path))
    put(tmp_path / small.paths(0)[0], b"damaged")
    fetch(small.spec, url=server.url, progress=False)
    assert files(tmp_path) == [tmp_path / small.paths(0)[0]]
    assert small.same(load(small.spec))


@pytest.mark.parametrize("layout", range(4))
def test_existing_files_are_not_downloaded(layout: int, server: Server, tmp_path: Path) -> None:
    small = make("mnist")
    small.write(tmp_path, layout)
    place = fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert place == (tmp_path, tmp_path / "MNIST/raw")[layout < 2]
    assert server.requested == []


def test_only_missing_or_damaged_files_are_downloaded(server: Server, tmp_path: Path) -> None:
    small = make("mnist")
    _, labels, test_images, _ = (tmp_path / path for path in small.paths())
    small.write(tmp_path)
    labels.unlink()
    put(test_images, b"damaged")
    fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert server.requested == [labels.name, test_images.name]
    assert small.same(load(small.spec, tmp_path))


def test_a_download_repairs_any_layout(server: Server, tmp_path: Path) -> None:
    small = make("cifar100")
    small.write(tmp_path, 1)
    put(tmp_path / "cifar-100-python" / "test", b"damaged")
    with pytest.raises(DataError, match="download it again with"):
        load(small.spec, tmp_path)
    fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert small.same(load(small.spec, tmp_path))


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        ("truncated", r" disconnected after \d+ of \d+ bytes; "),
        ("corrupt", " does not match the checksum md5:[0-9a-f]{32}; "),
        ("large", r" is larger than \d+ bytes, .*; "),
        ("endless", r" is larger than \d+ bytes, .*; "),
        ("404", " returned 404 Not Found; "),
        ("503", " returned 503 Service Unavailable; "),
    ],
)
def test_a_failed_download_leaves_files_as_they_were(
    behaviour: str, problem: str, server: Server, tmp_path: Path
) -> None:
    small = make("cifar10")
    server.behaviour = behaviour
    path = tmp_path / "cifar-10-python.tar.gz"
    expected = f"{server.url}/{path.name}{problem}.* save a copy as {path}$"
    with pytest.raises(DataError, match=expected):
        fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert files(tmp_path) == []
    put(path, b"unchanged")
    with pytest.raises(DataError, match=expected):
        fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert path.read_bytes() == b"unchanged"
    server.behaviour = "intact"
    fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert small.same(load(small.spec, tmp_path))


def test_content_encoding_is_ignored(server: Server, tmp_path: Path) -> None:
    """Some servers declare a .gz file to be a compressed response."""
    server.behaviour = "encoded"
    small = make("mnist")
    fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert small.same(load(small.spec, tmp_path))


def test_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as closed:
        url = closed.url
    with pytest.raises(DataError, match=r"gz cannot be reached \(ConnectionError\)"):
        fetch(make("mnist").spec, tmp_path, url=url, progress=False)
    with pytest.raises(DataError, match=r"cannot be reached \(MissingSchema\)"):
        fetch(make("mnist").spec, tmp_path, url="nonsense", progress=False)


def test_an_unwritable_folder(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        fetch(make("mnist").spec, tmp_path / "file" / "data", url=server.url, progress=False)


def test_an_interrupted_download_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(url: str, output: str, *_: object, **__: object) -> None:
        Path(output).write_bytes(b"a part")
        raise KeyboardInterrupt

    monkeypatch.setattr("perdure.data.download._download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(make("cifar10").spec, tmp_path, progress=False)
    assert files(tmp_path) == []


def test_the_official_url_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def retrieve(url: str, *_: object, **__: object) -> None:
        requested.append(url)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pooch.retrieve", retrieve)
    for name in NAMES:
        with pytest.raises(DataError, match="No space left on device"):
            fetch(name, tmp_path, progress=False)
    assert requested == [
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    ]


def report(small: Small, server: Server, root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    fetch(small.spec, root, url=server.url)
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_progress_is_a_bar_on_a_terminal_and_a_line_elsewhere(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = make("cifar10")
    url = f"{server.url}/cifar-10-python.tar.gz"
    assert report(small, server, tmp_path / "a", capsys) == f"downloading {url}\n"
    assert "nothing to download" in report(small, server, tmp_path / "a", capsys)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar = report(small, server, tmp_path / "b", capsys)
    assert "cifar-10-python.tar.gz" in bar
    assert "━━━" in bar
    assert "downloading" not in bar
    monkeypatch.undo()
    fetch(small.spec, tmp_path / "c", url=server.url, progress=False)
    assert capsys.readouterr() == ("", "")


def test_present_files_are_read_with_progress_and_their_flaw_is_reported(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.data.progress.MANY_FILES", 10)
    small = make("tiny-imagenet")
    assert "decoding" not in report(small, server, tmp_path / "empty", capsys)
    image = small.write(tmp_path, 1) / small.paths(1)[0]
    put(image, b"")
    err = report(small, server, tmp_path, capsys)
    steps = ["decoding tiny-imagenet", f"note: {image} is not a complete", "downloading http"]
    for line, step in zip(err.splitlines(), steps, strict=True):
        assert line.startswith(step)
    put(image, small.files[small.paths(1)[0]])
    (tmp_path / "tiny-imagenet-200.zip").unlink()
    assert report(small, server, tmp_path, capsys).startswith("decoding tiny-imagenet")


def test_the_bundled_digits_are_not_downloaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch("mnist5k").name == "mnist5k.npz"
    assert "nothing to download" in capsys.readouterr().err
