"""Downloads that are checked before they get their name, and that end when the network does not answer."""

import contextlib
import queue
import sys
import threading
import urllib.parse
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from tfperf.data.expected import ExpectedFile
from tfperf.data.reading import unpacked_and_checked
from tfperf.errors import DataError
from tfperf.files import writing_whole

__all__ = ["CONTACT_S", "fetch"]

CONTACT_S = 6.0  # how long the server may take to say that it has the file; leaves room below 10 s
STALL_S = 20.0  # how long the next piece may take: slower than about 3 kB/s is a stall
_PIECE = 64 * 1024  # bytes
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def fetch(
    url: str, target: Path, expected: ExpectedFile, *, contact_s: float = CONTACT_S, stall_s: float = STALL_S
) -> None:
    """Download a file to `target`, where it appears whole and checked, or not at all.

    Several processes may fetch the same target at once. A progress bar is shown on stderr where that is
    a terminal. Proxies are those of the environment, as in `requests`.

    Args:
        url: https; plain http only to this machine itself.
        target: the file to write; its folder is made.
        expected: what the file must hold. Nothing beyond its `packed_limit` is read.
        contact_s: seconds until the server must have answered, including finding its address.
        stall_s: seconds until each further piece of 64 KiB must have come.

    Raises:
        DataError: no answer in time, a refusal, a stall, other contents, or a folder that cannot be written.
        ValueError: the URL is not https.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError(f"expected an https URL. Received: url={url!r}")
    packed = bytearray()  # at most packed_limit and one piece: tens of MB, checked before a byte is written
    with _progress(target.name) as advance, contextlib.closing(_pieces(url, contact_s, stall_s)) as pieces:
        for piece in pieces:
            packed += piece
            if len(packed) > expected.packed_limit:
                break  # the check says so
            advance(len(piece))
    try:
        unpacked_and_checked(bytes(packed), expected)
    except ValueError as error:
        raise DataError(f"{url} is not the file it should be: {error}; nothing was kept") from error
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with writing_whole(target) as file:
            file.write(packed)
    except OSError as error:
        raise DataError(
            f"{target} cannot be written: {error.strerror or error}; "
            "set TFPERF_CACHE to a folder that you may write, with room for it"
        ) from error


def _pieces(url: str, contact_s: float, stall_s: float) -> Generator[bytes, None, None]:
    """The body of `url`, piece by piece, each within its time.

    The network is left to a daemon thread, because nothing bounds the whole of a name look-up, the many
    addresses of a host, and a server that sends a byte now and then; waiting on a queue is bounded.
    """
    inbox: queue.Queue[bytes | Exception | None] = queue.Queue(maxsize=16)
    stop = threading.Event()
    threading.Thread(target=_receive, args=(url, contact_s, stall_s, inbox, stop), daemon=True).start()
    try:
        seconds, problem = contact_s, "cannot be reached: no answer"
        while True:
            try:
                item = inbox.get(timeout=seconds)
            except queue.Empty:
                raise DataError(f"{url} {problem} within {seconds:g} s") from None
            if item is None:
                return
            if isinstance(item, Exception):
                raise DataError(f"{url} {_reason(item)}") from item
            yield item
            seconds, problem = stall_s, f"stalled: less than {_PIECE // 1024} KiB came"
    finally:
        stop.set()


def _receive(
    url: str,
    contact_s: float,
    stall_s: float,
    inbox: "queue.Queue[bytes | Exception | None]",
    stop: threading.Event,
) -> None:
    """Put into `inbox` an empty piece on contact, then the body's pieces, then None; or an exception."""

    def put(item: bytes | Exception | None) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                inbox.put(item, timeout=0.2)
                return

    try:
        import requests

        with requests.get(
            url,
            stream=True,
            timeout=(contact_s, stall_s),
            headers={"Accept-Encoding": "identity"},  # the .gz file itself, not its contents
            allow_redirects=False,  # these files do not move; a redirect is a captive portal's page
        ) as response:
            if response.status_code != 200:
                put(OSError(f"answered {response.status_code} {response.reason}, expected 200"))
                return
            put(b"")
            for piece in response.iter_content(_PIECE):
                put(piece)
                if stop.is_set():
                    return
        put(None)
    except Exception as error:  # whatever it is, the one who waits must hear of it
        put(error)


def _reason(error: Exception) -> str:
    """Why there was no download, in words, without the chain of wrapped exceptions that requests shows."""
    text = str(error)
    if text.startswith("answered "):
        return text
    for sign, words in (
        ("NameResolutionError", "the host's name cannot be resolved"),
        ("Failed to resolve", "the host's name cannot be resolved"),
        ("Connection refused", "the connection was refused"),
        ("unreachable", "the network is unreachable"),
        ("IncompleteRead", "the connection broke off"),
        ("imed out", "timed out"),
    ):
        if sign in text:
            return f"cannot be reached: {words}"
    return f"cannot be reached: {' '.join(text.split())[:200] or type(error).__name__}"


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Callable[[int], object]]:
    """Something to call with the number of bytes that came; draws a bar where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("downloading {task.description}"), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=None)
        yield lambda count: progress.advance(task, count)
