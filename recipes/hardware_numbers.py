"""How far is each kind of memory?

Source: 000, 硬件
Claim: DRAM takes 100 ns for the first access and 0.2 ns for each further one of a burst, ten million random reads a
    second at most; caches (L1 32-64 KB, L2 256-512 KB, L3 4-8 MB) read ahead forwards only, and lines that cores share
    slow them down; an SSD gives 1-3 GB/s and 100,000-500,000 IOPS; transfers should be few and large.
Holds not: on disks of virtual machines, where the host keeps blocks in its memory.
Needs: Numba (pip install 'tfperf[hardware]'), 600 MB of memory and 256 MB of disk for a while; no GPU, no data.
Time: about 90 s on 2 cores; with --quick about 20 s.
Shows: gather, keep_if, read_blocks
Try:
    - --queue 1: the queued blocks take as long as one at a time.
    - kept[count] = number; count += number >= limit, in place of the branch of keep_if: shuffled is as fast as sorted.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tfperf import Flag, Recipe
from tfperf.hardware import RandomReads, file_on_disk, measure_ladder, measure_loopback
from tfperf.measure import format_bytes, format_seconds
from tfperf.report import ladder_plot


def gather(numbers, order):
    """Add up the same numbers in another order: in a stream the processor fetches ahead, at random it cannot."""
    return numbers[order].sum()


def keep_if(numbers, limit):
    """Branch on each number (compile this with numba.njit): the processor guesses, and pays for each wrong guess."""
    kept, count = np.empty_like(numbers), 0
    for number in numbers:
        if number >= limit:
            kept[count] = number
            count += 1
    return kept[:count]


def read_blocks(path, offsets, size, queue):
    """Keep so many requests to the disk under way at once, as it serves a queue faster than single reads."""
    with Path(path).open("rb") as file, ThreadPoolExecutor(queue) as pool:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # else memory answers in the disk's place
        return sum(pool.map(lambda offset: len(os.pread(file.fileno(), size, offset)), offsets))


FAR, READS, CHAINS = 2**27, 2**18, (1, 2, 4, 8, 16)  # bytes, more than most caches; random reads of them; chains
FILE, BLOCK, BLOCKS, SIZE = 2**26, 4096, 1024, 2**22  # bytes of a file; of a block, how many are read, bytes of all


def main(recipe: Recipe) -> None:
    """Measure each kind of memory, and say where the source's numbers hold."""
    generator = np.random.default_rng(recipe.flags.seed)
    ladder = measure_ladder(recipe.flags.quick, recipe.console.print)
    rates = read_memory(recipe, generator)
    branch(recipe, generator.integers(0, 256, 2**18))
    show_table(recipe, ladder, read_a_file(recipe, generator))
    recipe.corrects(
        "processors read ahead backwards too, and ten million random reads a second are one chain only. Ethernet has "
        "1 to 100 Gbit/s, not GB/s; a DDR4 module gives 20 to 25 GB/s and a chip's memory 20 to 40 GB/s, not Gb/s. A "
        "line that two cores share goes from cache to cache, not through main memory."
    )
    recipe.plot(draw, ladder, rates)


def read_memory(recipe: Recipe, generator) -> list[float]:
    """Read a number of each cache line in four orders, and along one and more chains; returns reads a second."""
    numbers, lines = np.arange(FAR // 8), np.arange(0, FAR // 8, 8)
    orders = {"in order": lines, "backwards": lines[::-1].copy(), "a page apart": lines.reshape(-1, 64).T.ravel()}
    orders["random"] = generator.permutation(lines)
    ways = {name: lambda order=order: gather(numbers, order) for name, order in orders.items()}
    found = recipe.compare(ways, tolerance=0.0, what=f"the lines of {format_bytes(FAR)}")
    back, apart, at_random = (found[name].median / found["in order"].median for name in [*ways][1:])
    reads = RandomReads(FAR, recipe.flags.seed)
    ways = {f"chains: {chains}": lambda chains=chains: reads.read(READS, chains) for chains in CHAINS}
    found = recipe.compare(ways, tolerance=0.0, what="random reads")
    rates = [READS / found[name].median for name in ways]
    recipe.finds(
        f"The same numbers take {back:.1f} times as long backwards as in order, {apart:.1f} times with a page between "
        f"one and the next, and {at_random:.1f} times at random. One chain, where each read waits for the last, does "
        f"{rates[0] / 1e6:.1f} million reads a second, and {CHAINS[-1]} chains of a core {rates[-1] / 1e6:.0f} million."
    )
    return rates


def branch(recipe: Recipe, shuffled) -> None:
    """Keep the larger half of the numbers, where the processor can guess which these are and where it cannot."""
    from numba import njit

    keep, orders = njit(keep_if), {"shuffled": shuffled, "sorted": np.sort(shuffled)}
    recipe.agrees("keep_if, shuffled", np.sort(keep(shuffled, 128)), keep(orders["sorted"], 128), 0.0)
    ways = {name: lambda numbers=numbers: keep(numbers, 128) for name, numbers in orders.items()}
    found = recipe.compare(ways, tolerance=None, what="the larger half")
    guessed, known = (found[name].median / len(shuffled) for name in ways)
    recipe.finds(
        f"A number takes {format_seconds(guessed)} in shuffled order and {format_seconds(known)} sorted: half of the "
        f"guesses at the branch are wrong, and each of these costs {format_seconds(2 * (guessed - known))}."
    )


def read_a_file(recipe: Recipe, generator) -> list[float]:
    """Read as many bytes one block at a time, in a queue, and at once; returns bytes a second."""
    queue, offsets = recipe.flags.queue, (generator.permutation(FILE // BLOCK)[:BLOCKS] * BLOCK).tolist()
    with file_on_disk(".", FILE) as path:
        ways = {
            "one at a time": lambda: read_blocks(path, offsets, BLOCK, 1),
            "queued": lambda: read_blocks(path, offsets, BLOCK, queue),
            "one transfer": lambda: read_blocks(path, [0], SIZE, 1),
        }
        found = recipe.compare(ways, tolerance=0.0, what=f"{BLOCKS} blocks of a file")
    queued, large = (found.ratio("one at a time", name).estimate for name in [*ways][1:])
    recipe.finds(
        f"{BLOCKS} blocks of 4 KiB are read {queued:.1f} times as fast with {queue} requests under way as one at a "
        f"time, and as many bytes in one transfer {large:.0f} times as fast: each request pays its start."
    )
    return [SIZE / found[name].median for name in ways]


def show_table(recipe: Recipe, ladder, disk) -> None:
    """Show the source's numbers beside this machine's."""
    far, loopback, sizes = ladder.accesses[-1], measure_loopback(), [format_bytes(one.size) for one in ladder.caches]
    rows = [
        ("L1, L2, L3", "32-64 KiB, 256-512 KiB, 4-8 MiB", ", ".join(sizes)),
        ("memory, first access", "100 ns", format_seconds(far.random_seconds)),
        ("memory, next 8 bytes", "0.2 ns", format_seconds(far.burst_seconds)),
        ("4 KiB of a disk", "SSD 100,000-500,000 a second", f"{disk[0] / BLOCK:,.0f}, queued {disk[1] / BLOCK:,.0f}"),
        ("disk, one transfer", "SSD 1-3, hard disk 0.1-0.2 GB/s", f"{disk[2] / 1e9:.3g} GB/s"),
        ("vectors", "up to 64 at once", f"{ladder.scalar_seconds / ladder.vector_seconds:.3g} times as fast as one"),
    ]
    rows += [(f"counters, {one.way}", "slower in one line", f"{one.times:.2f} times as slow") for one in ladder.sharing]
    rows += [("loopback", "Ethernet 0.125 GB/s", f"{loopback.bytes_per_second / 1e9:.3g} GB/s")] if loopback else []
    recipe.table(("", "the source", "this machine"), rows)
    for name, theirs, here in rows:
        recipe.fact(f"{name} (source: {theirs})", here)


def draw(figure, ladder, rates) -> None:
    """Draw the ladder beside the source's two numbers, and the random reads of several chains."""
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    ladder_plot(left, ladder, {"source: first access to DRAM": 100e-9, "source: each further one": 0.2e-9})
    right.plot(CHAINS, [rate / 1e6 for rate in rates], "o-")
    right.axhline(10, color="tab:red", linestyle="--")  # the most, after the source
    right.set(title="Random reads", xlabel="chains of one core", ylabel="million a second", ylim=0)


if __name__ == "__main__":
    Recipe(__file__, batch=1, queue=Flag(32, "requests to the disk under way at once")).run(main)
