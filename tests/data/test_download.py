"""Downloads from a server of our own, which answers well and badly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from perdure.data import DataError, fetch, load, locate

from .small import NAMES, Small, make, put


class Server(ThreadingHTTPServer):
    """Sends files by their last name, well or badly, and notes what it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {
            path.rpartition("/")[2]: make(name).files[path]
            for name in NAMES
            for path in make(name).paths(0)
        }
        self.asked: list[str] = []
        self.mood = "well"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.server.asked.append(name)
        data, mood = self.server.files[name], self.server.mood
        if mood.isdigit():
            self.send_error(int(mood))
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        if mood == "encoded":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if mood == "corrupt":
            data = bytes(len(data))
        self.wfile.write(data[: len(data) // 2] if mood == "truncated" else data)

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
def test_what_is_fetched_can_be_loaded(name: str, server: Server, tmp_path: Path) -> None:
    small = make(name)
    root = tmp_path / "a" / "b"
    assert fetch(small.spec, root, url=server.url, progress=False) == locate(small.spec, root)
    assert files(root) == sorted(root / path for path in small.paths(0))
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in files(root))
    assert small.same(load(small.spec, root))
    assert len(server.asked) == len(small.paths(0))


def test_without_a_root_it_goes_to_the_cache(server: Server, cache: Path) -> None:
    small = make("cifar10")
    place = fetch(small.spec, url=server.url + "/", progress=False)
    assert place == cache / "cifar-10-python.tar.gz"
    assert small.same(load(small.spec))


@pytest.mark.parametrize("layout", range(4))
def test_what_is_there_is_not_fetched(layout: int, server: Server, tmp_path: Path) -> None:
    small = make("mnist")
    small.write(tmp_path, layout)
    place = fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert place == (tmp_path, tmp_path / "MNIST/raw")[layout < 2]
    assert server.asked == []


def test_only_what_is_missing_or_damaged_is_fetched(server: Server, tmp_path: Path) -> None:
    small = make("mnist")
    _, labels, test_images, _ = (tmp_path / path for path in small.paths())
    small.write(tmp_path)
    labels.unlink()
    put(test_images, b"damaged")
    fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert server.asked == [labels.name, test_images.name]
    assert small.same(load(small.spec, tmp_path))


def test_fetching_repairs_any_layout(server: Server, tmp_path: Path) -> None:
    small = make("cifar100")
    small.write(tmp_path, 1)
    put(tmp_path / "cifar-100-python" / "test", b"damaged")
    with pytest.raises(DataError, match="fetch it again with"):
        load(small.spec, tmp_path)
    fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert small.same(load(small.spec, tmp_path))


@pytest.mark.parametrize(
    ("mood", "answer"),
    [
        ("truncated", r" broke off after \d+ of \d+ bytes; "),
        ("corrupt", " has other content than md5:[0-9a-f]{32}; "),
        ("404", " answered 404 Not Found; "),
        ("503", " answered 503 Service Unavailable; "),
    ],
)
def test_a_bad_answer_spoils_nothing(
    mood: str, answer: str, server: Server, tmp_path: Path
) -> None:
    small = make("cifar10")
    server.mood = mood
    path = tmp_path / "cifar-10-python.tar.gz"
    expected = f"{server.url}/{path.name}{answer}try again later, or put a copy of it at {path}$"
    with pytest.raises(DataError, match=expected):
        fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert files(tmp_path) == []
    put(path, b"as it was")
    with pytest.raises(DataError, match=expected):
        fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert path.read_bytes() == b"as it was"
    server.mood = "well"
    fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert small.same(load(small.spec, tmp_path))


def test_bytes_are_stored_as_they_were_sent(server: Server, tmp_path: Path) -> None:
    """Some servers call a .gz file an encoded answer, which a browser would unpack."""
    server.mood = "encoded"
    small = make("mnist")
    fetch(small.spec, tmp_path, url=server.url, progress=False)
    assert small.same(load(small.spec, tmp_path))


def test_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as closed:
        url = closed.url
    with pytest.raises(DataError, match=r"gz cannot be reached \(ConnectionError\); try again"):
        fetch(make("mnist").spec, tmp_path, url=url, progress=False)
    with pytest.raises(DataError, match=r"cannot be reached \(MissingSchema\)"):
        fetch(make("mnist").spec, tmp_path, url="nonsense", progress=False)


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be written .* name another folder"):
        fetch(make("mnist").spec, tmp_path / "file" / "data", url=server.url, progress=False)


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(url: str, output: str, *_: object, **__: object) -> None:
        Path(output).write_bytes(b"a part")
        raise KeyboardInterrupt

    monkeypatch.setattr("perdure.data.download._download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(make("cifar10").spec, tmp_path, progress=False)
    assert files(tmp_path) == []


def test_the_official_address_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def retrieve(url: str, *_: object, **__: object) -> None:
        asked.append(url)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pooch.retrieve", retrieve)
    for name in NAMES:
        with pytest.raises(DataError, match="No space left on device"):
            fetch(name, tmp_path, progress=False)
    assert asked == [
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    ]


def said(small: Small, server: Server, root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    fetch(small.spec, root, url=server.url)
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_progress_is_a_line_or_a_bar(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = make("cifar10")
    url = f"{server.url}/cifar-10-python.tar.gz"
    assert said(small, server, tmp_path / "a", capsys) == f"fetching {url}\n"
    assert (
        said(small, server, tmp_path / "a", capsys)
        == "cifar10 is there already: nothing to fetch\n"
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar = said(small, server, tmp_path / "b", capsys)
    assert "cifar-10-python.tar.gz" in bar
    assert "━━━" in bar
    assert "fetching" not in bar
    monkeypatch.undo()
    fetch(small.spec, tmp_path / "c", url=server.url, progress=False)
    assert capsys.readouterr() == ("", "")


def test_the_shipped_digits_need_no_fetch(capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch("mnist5k").name == "mnist5k.npz"
    assert capsys.readouterr().err == "mnist5k comes with perdure: nothing to fetch\n"
