"""How far is each kind of memory?

Source: 000, 硬件
Claim: the first access to DRAM takes 100 ns and each further one of a burst 0.2 ns; L1 holds 32-64 KB, L2 256-512 KB,
    L3 4-8 MB; an SSD gives 1-3 GB/s and 100,000-500,000 IOPS; a shared cache line slows cores down.
Holds not: on disks of virtual machines, where the host keeps blocks in its memory.
Needs: Numba (pip install 'tfperf[hardware]'), 600 MB of memory and 192 MB of disk for a while; no GPU, no data.
Time: about 35 s on 2 cores; with --quick about 15 s.
Shows: gather, read_blocks, read_in_one_piece
Try: --quick: fewer rungs of the ladder, and the same order of the kinds of memory.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tfperf import Recipe
from tfperf.hardware import check_numba, measure_ladder, measure_loopback, read_disk
from tfperf.measure import format_bytes, format_seconds
from tfperf.report import mark_caches, scale_of_bytes


def gather(numbers, order):
    """Add up the same numbers in another order: in order the processor fetches ahead, at random it waits."""
    return numbers[order].sum()


def read_blocks(path, offsets, depth):
    """Read blocks of 4 KiB with so many requests under way at once: a disk serves a queue faster than single reads."""
    with Path(path).open("rb") as file, ThreadPoolExecutor(depth) as pool:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # what is in the page cache is no disk
        return sum(pool.map(lambda offset: len(os.pread(file.fileno(), 4096, offset)), offsets))


def read_in_one_piece(path, size):
    """Read as many bytes with one request: a transfer pays its start once."""
    with Path(path).open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return len(os.pread(file.fileno(), size, 0))


FIRST, FURTHER = 100e-9, 0.2e-9  # the source's seconds to DRAM: first access, and each further 8 bytes of a burst
CACHES = ((1, (32, 64)), (2, (256, 512)), (3, (4096, 8192)))  # its KiB, by level
FAR = 2**27  # bytes, more than most caches hold
BLOCKS = 512  # of 4 KiB, read from a file of 64 MiB


def main(recipe: Recipe) -> None:
    """Measure each kind of memory, and say where the source's numbers hold."""
    check_numba()
    from tfperf.hardware import SCALAR, VECTOR  # compiles them

    generator = np.random.default_rng(recipe.flags.seed)
    x, half = generator.random(2048, np.float32), np.float32(0.5)  # (numbers,)
    scalar, vector = np.zeros_like(x), np.zeros_like(x)
    SCALAR(x, scalar, half, 10)
    VECTOR(x, vector, half, 10)
    recipe.agrees("vectors, against one by one", vector, scalar, 0.0)
    loops = {"one by one": lambda: SCALAR(x, scalar, half, 100), "in vectors": lambda: VECTOR(x, vector, half, 100)}
    simd = recipe.compare(loops, tolerance=None, what="multiply and add").ratio(*loops)
    ladder = measure_ladder(recipe.flags.quick, lambda words: recipe.console.print(words, markup=False))
    numbers, in_order = np.arange(FAR // 8), np.arange(0, FAR // 8, 8)  # a number of each cache line
    orders = {"random": generator.permutation(in_order), "in order": in_order}
    walks = {name: lambda order=order: gather(numbers, order) for name, order in orders.items()}
    order = recipe.compare(walks, tolerance=0.0, what=f"the lines of {format_bytes(FAR)}").ratio(*walks)
    show_table(recipe, ladder)
    read_a_file(recipe, generator)
    explain(recipe, ladder, order, simd)
    recipe.corrects(
        "Ethernet runs at 1 to 100 Gbit/s, not GB/s, and a DDR4 module gives 20 to 25 GB/s, not Gb/s. Ten million "
        "random reads a second are one chain that waits for each; a core keeps ten and more under way."
    )
    recipe.plot(draw, ladder)


def read_a_file(recipe: Recipe, generator) -> None:
    """Read the same number of bytes block by block, queued, and in one piece."""
    with TemporaryDirectory(dir=".") as folder:
        path, size = Path(folder, "blocks"), 64 * 2**20
        path.write_bytes(generator.bytes(size))
        with path.open("rb") as file:
            os.fsync(file.fileno())  # only what is on the disk can leave the page cache
        offsets = [int(one) for one in generator.permutation(size // 4096)[:BLOCKS] * 4096]
        ways = {
            "blocks, one at a time": lambda: read_blocks(path, offsets, 1),
            "blocks, 32 at once": lambda: read_blocks(path, offsets, 32),
            "one piece": lambda: read_in_one_piece(path, BLOCKS * 4096),
        }
        comparison = recipe.compare(ways, tolerance=0.0, what=f"{BLOCKS} blocks of a file")
    queued, piece = (comparison.ratio("blocks, one at a time", name) for name in [*ways][1:])
    rate = BLOCKS / comparison["blocks, 32 at once"].median
    recipe.fact("blocks a second, 32 at once", rate)
    recipe.finds(
        f"{BLOCKS} blocks of 4 KiB: 32 at once are {queued.estimate:.1f} times as fast as one at a time ({rate:,.0f} a "
        f"second), and the same bytes in one piece {piece.estimate:.0f} times: queue small reads, or join them."
    )


def show_table(recipe: Recipe, ladder) -> None:
    """Show the source's numbers beside this machine's."""
    far, sizes = ladder.accesses[-1], {cache.level: cache.size for cache in ladder.caches}
    rows = [
        (f"L{level} cache", f"{low}-{high} KiB", format_bytes(sizes.get(level, 0))) for level, (low, high) in CACHES
    ]
    rows += [
        ("memory, first access", "100 ns", format_seconds(far.random_seconds)),
        ("memory, 8 bytes more", "0.2 ns", format_seconds(far.burst_seconds)),
        ("memory, read", "40-100 GB/s by all", f"{8e-9 / far.burst_seconds:.3g} GB/s by one core"),
    ]
    if disk := read_disk(Path()):
        rows += [
            ("disk, front to back", "SSD 1-3, hard disk 0.1-0.2 GB/s", f"{disk.bytes_per_second / 1e9:.3g} GB/s"),
            (
                "disk, 4 KiB at random",
                "SSD 100,000-500,000 a second",
                f"{1 / disk.random_read_seconds:,.0f} one by one",
            ),
        ]
    if loopback := measure_loopback():
        rows += [
            ("loopback, there and back", "not told", format_seconds(loopback.round_trip_seconds)),
            ("loopback, in a stream", "Ethernet 0.125 GB/s", f"{loopback.bytes_per_second / 1e9:.3g} GB/s"),
        ]
    recipe.table(("", "the source", "this machine"), rows)
    for name, theirs, here in rows:
        recipe.fact(f"{name} (source: {theirs})", here)


def explain(recipe: Recipe, ladder, order, simd) -> None:
    """Say what the figures mean."""
    near, far = ladder.accesses[0], ladder.accesses[-1]
    recipe.finds(
        f"A number at a random place of {format_bytes(far.working_set)} is {format_seconds(far.random_seconds)} away, "
        f"one in the first cache {format_seconds(near.random_seconds)}. The same lines in order come "
        f"{order.estimate:.1f} times as fast, as each is fetched before it is asked for."
    )
    for one in ladder.sharing:
        recipe.fact(f"times as long with two threads on one cache line: {one.way} additions", one.times)
        recipe.finds(
            f"Two threads that count, {one.way}, take {one.times:.1f} times as long on one cache line as on two."
        )
    recipe.finds(f"Vectors do {simd.estimate:.1f} numbers in the time of one [{simd.low:.1f}, {simd.high:.1f}].")


def draw(figure, ladder) -> None:
    """Draw latency over working set, random and in a burst, with the source's numbers."""
    axes, sizes = figure.subplots(), [one.working_set for one in ladder.accesses]
    axes.plot(sizes, [one.random_seconds * 1e9 for one in ladder.accesses], "o-", label="random")
    axes.plot(sizes, [one.burst_seconds * 1e9 for one in ladder.accesses], "s-", label="8 bytes of a burst")
    for seconds, words in ((FIRST, "source: first access to DRAM"), (FURTHER, "source: each further one")):
        axes.axhline(seconds * 1e9, color="tab:red", linestyle="--", label=words)
    scale_of_bytes(axes, sizes[0], sizes[-1])
    mark_caches(axes, ladder.caches, at_top=False)
    axes.set(yscale="log", ylabel="ns", title="How far memory is; dotted: the caches of this machine")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
