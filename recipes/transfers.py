"""One large transfer or many small ones?

Source: 000, 网络和总线
Claim: transfers should be few and large, in memory, SSD, network and GPU alike. PCIe 4.0 x16 has 32 GB/s and 5 us.
Holds not: where small transfers are under way at once, as in a queue of a disk: their starts overlap.
Needs: Linux, and a disk in the working folder, which is read past the page cache (O_DIRECT; a hypervisor's cache may
    answer); no data. Where there is an NVIDIA GPU, TensorFlow copies to it from pageable memory.
Time: about 35 s on 2 cores; with --quick about 15 s.
Shows: at_once, in_pieces, fit
Try: --piece 65536: pieces come closer to one transfer, as each takes longer than its start.
"""

import mmap
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from tfperf import Flag, Recipe, TfperfError
from tfperf.hardware import file_on_disk
from tfperf.measure import format_bytes, format_seconds
from tfperf.processes import WorkerProcesses
from tfperf.scaling import sweep


def at_once(move, total):
    """Move all bytes in one transfer, and pay its start once."""
    move(0, total)


def in_pieces(move, total, size):
    """Move as many bytes in pieces, and pay the start of each."""
    for begin in range(0, total, size):
        move(begin, min(begin + size, total))


def fit(sizes, seconds):
    """Find the start, in seconds, and the bytes/s of a transfer from a few times, so that all sizes count alike."""
    columns = np.stack([np.ones(len(sizes)), sizes], axis=1) / np.reshape(seconds, (-1, 1))  # relative errors
    start, seconds_of_a_byte = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)[0]
    return start, 1 / seconds_of_a_byte


LARGEST, SIZES, BLOCK = 2**24, [2**power for power in range(12, 25)], 4096  # bytes; of a block of a disk
SOURCE = {"memory": "40-100 GB/s", "file past the cache": "SSD 1-3 GB/s", "loopback TCP": "Ethernet 0.125 GB/s"}


def main(recipe: Recipe) -> None:
    """Fit two numbers to each kind of transfer, and let them predict what pieces cost."""
    total, piece = recipe.flags.kilobytes * 1024, recipe.flags.piece
    if piece % BLOCK or not 0 < piece <= total <= LARGEST:
        raise TfperfError(f"expected --piece in multiples of {BLOCK}, at most {total}. Received: --piece {piece}")
    times, fits, ways, rows = {}, {}, {}, []
    with ExitStack() as stack:
        for kind, move in open_kinds(recipe, stack).items():
            times[kind] = np.median(sweep(partial(move, 0), SIZES, 20), axis=0)
            start, bandwidth = fits[kind] = fit(SIZES, times[kind])
            error = np.median(np.abs((start + np.array(SIZES) / bandwidth) / times[kind] - 1))
            cells = format_seconds(start), f"{bandwidth / 1e9:.3g} GB/s", format_bytes(start * bandwidth)
            rows.append((kind, *cells, f"{error:.0%}", SOURCE.get(kind, "-")))
            recipe.fact(f"seconds to start: {kind}", start)
            recipe.fact(f"bytes/s: {kind}", bandwidth)
            ways[f"{kind}, one"] = partial(at_once, move, total)
            ways[f"{kind}, many"] = partial(in_pieces, move, total, piece)
        found = recipe.compare(ways, tolerance=None, what=f"{format_bytes(total)}, one and many")
    recipe.table(("", "start", "bandwidth", "equal at", "error", "the source"), rows)
    for kind, (start, bandwidth) in fits.items():
        measured = 1 / found.ratio(f"{kind}, one", f"{kind}, many").estimate
        predicted = (total / piece * start + total / bandwidth) / (start + total / bandwidth)
        recipe.finds(f"{kind}: {total // piece} pieces take {measured:.3g} times as long, {predicted:.3g} predicted.")
    recipe.corrects(
        "of PCIe's 5 us the bus takes 0.5 to 1, driver and framework 5 to 20. In 5 us PCIe 4.0 x16, at 31.5 GB/s each "
        f"way, moves {5e-6 * 31.5e9 / 1e3:.0f} kB. A V100's NVLink has 200 Gbit/s each way, not 300. A copy with "
        "non_blocking=True waits in the stream of the kernels: overlap takes pinned memory, another stream, and a wait "
        "before it is read; synchronize() waits for the current GPU only."
    )
    recipe.plot(draw, times, fits)


def open_kinds(recipe: Recipe, stack: ExitStack) -> dict:
    """Open every kind of transfer and check what arrives; gives kind -> move(begin, end), which waits for that."""
    source = np.random.default_rng(recipe.flags.seed).integers(0, 256, LARGEST, np.uint8)
    target = np.frombuffer(mmap.mmap(-1, LARGEST), np.uint8)  # begins where a page does, as reads past the cache need
    path = stack.enter_context(file_on_disk(".", LARGEST))
    files = [os.open(path, os.O_RDONLY | flag) for flag in (0, os.O_DIRECT)]
    stack.callback(lambda: [os.close(file) for file in files])
    process, reader = stack.enter_context(WorkerProcesses(1)), stack.enter_context(ThreadPoolExecutor(1))
    near, far = connect(stack)

    def send(begin, end):
        arrived = reader.submit(far.recv_into, target[begin:end], 0, socket.MSG_WAITALL)
        near.sendall(source[begin:end])
        arrived.result()

    cached, direct = (lambda begin, end, file=file: os.preadv(file, [target[begin:end]], begin) for file in files)
    kinds = {"file in the page cache": cached, "file past the cache": direct, "loopback TCP": send}
    kinds["memory"] = lambda begin, end: np.copyto(target[begin:end], source[begin:end])
    for kind, move in kinds.items():
        target[:] = 0
        move(0, LARGEST)
        recipe.agrees(kind, target, np.fromfile(path, np.uint8) if "file" in kind else source, 0.0)
    recipe.agrees("pipe", np.frombuffer(process.run(bytes, [(source.tobytes(),)])[0], np.uint8), source, 0.0)
    kinds["pipe to a process"] = lambda begin, end: process.run(len, [(source[begin:end].tobytes(),)])
    return kinds | gpu_copies(source)


def connect(stack: ExitStack):
    """Connect two ends over 127.0.0.1; nothing listens any more when they are there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = stack.enter_context(socket.create_connection(server.getsockname(), 10))
        far, address = server.accept()
        stack.enter_context(far)
    if address != near.getsockname():
        raise TfperfError(f"expected a connection from {near.getsockname()}. Received: one from {address}; try again")
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


def gpu_copies(source) -> dict:
    """Copy from the program's own, pageable memory to a GPU, where there is one."""
    if not Path("/proc/driver/nvidia/gpus").exists():
        return {}
    import tensorflow as tf  # only where it is needed

    def copy(begin, end):
        with tf.device("GPU:0"):
            tf.constant(source[begin:end])
        tf.test.experimental.sync_devices()

    return {"host to GPU": copy}


def draw(figure, times: dict, fits: dict) -> None:
    """Draw the time of a transfer against its size, and the fits."""
    axes, sizes = figure.subplots(), np.array(SIZES)
    for color, (kind, seconds) in enumerate(times.items()):
        start, bandwidth = fits[kind]
        axes.loglog(sizes, seconds, f"C{color}o", label=kind)
        axes.loglog(sizes, start + sizes / bandwidth, f"C{color}-")
    axes.set(xlabel="bytes of a transfer", ylabel="seconds", title="Start + bytes / bandwidth (lines), and measured")
    axes.legend()


if __name__ == "__main__":
    kilobytes, piece = Flag(2048, "KiB that are moved in one transfer and in many"), Flag(4096, "bytes of each of many")
    Recipe(__file__, batch=1, kilobytes=kilobytes, piece=piece).run(main)
