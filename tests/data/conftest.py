"""Small data sets made of files, and a server for them that only this machine can reach."""

import dataclasses
import gzip
import hashlib
import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tfperf.data.expected import ExpectedFile, ImageSet

Handler = http.server.BaseHTTPRequestHandler


@dataclasses.dataclass
class Sample:
    """A data set of 5 train and 3 test images of 4x3, with the bytes of its four files."""

    spec: ImageSet
    packed: dict[str, bytes]
    arrays: tuple[np.ndarray, ...]

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.packed.items():
            (folder / name).write_bytes(content)
        return folder


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def make_sample(url: str, seed: int = 0) -> Sample:
    rng = np.random.default_rng(seed)
    arrays = tuple(
        rng.integers(0, high, shape, dtype=np.uint8)
        for high, shape in ((256, (5, 4, 3)), (2, (5,)), (256, (3, 4, 3)), (2, (3,)))
    )
    names = ("train-images.gz", "train-labels.gz", "test-images.gz", "test-labels.gz")
    contents = [idx(array) for array in arrays]
    files = tuple(
        ExpectedFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in zip(names, contents, strict=True)
    )
    spec = ImageSet(
        name="sample",
        folder="sample-set",
        url=url,
        files=files,
        image_shape=(4, 3),
        n_train=5,
        n_test=3,
        class_names=("no", "yes"),
        debian_package="dataset-sample",
    )
    packed = {name: gzip.compress(content) for name, content in zip(names, contents, strict=True)}
    return Sample(spec, packed, arrays)


class Server:
    """A web server on loopback; `answers` says what each path does."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[Handler], None]] = {}
        self.requests: list[str] = []
        self.release = threading.Event()  # what a stalling answer waits for; set at the end of the test
        server = self

        class _Handler(Handler):
            def do_GET(self) -> None:  # noqa: N802  # the name that http.server calls
                server.requests.append(self.path)
                answer = server.answers.get(self.path)
                if answer is None:
                    self.send_error(404)
                    return
                try:
                    answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the client went away, as some tests want

            def log_message(self, *arguments: object) -> None: ...

        self._httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self._httpd.server_port}/"
        self._thread = threading.Thread(target=self._httpd.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.release.set()
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()

    def serve(self, name: str, content: bytes, *, claimed: int | None = None, stall_after: int | None = None) -> None:
        """Answer `/name` with content; claim another length, or stop after so many bytes, if asked to."""

        def answer(handler: Handler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(content) if claimed is None else claimed))
            handler.end_headers()
            handler.wfile.write(content[:stall_after])
            handler.wfile.flush()
            if stall_after is not None:
                self.release.wait(30)
            handler.close_connection = True

        self.answers["/" + name] = answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    running = Server()
    yield running
    running.close()


@pytest.fixture
def dead_url() -> str:
    """A URL on this machine that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


@pytest.fixture
def sample(dead_url: str) -> Sample:
    return make_sample(dead_url)


@pytest.fixture
def sample_for() -> Callable[..., Sample]:
    """Makes a sample data set whose download comes from a given URL."""
    return make_sample


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Keras home at `keras` and an empty tfperf cache at `cache`, both in the folder returned."""
    (tmp_path / "keras").mkdir()
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    return tmp_path
