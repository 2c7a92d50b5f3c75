"""How far is each kind of memory?

Command: python recipes/hardware_numbers.py, or tfperf run hardware_numbers
Needs: Numba (pip install 'tfperf[hardware]'), 600 MB of memory and 128 MB of disk for a while; no GPU, no data.
Time: about 30 s on 2 cores; with --quick about 15 s.
Source: the first access to DRAM takes 100 ns and each further one of a burst 0.2 ns; L1 holds 32-64 KB, L2
    256-512 KB, L3 4-8 MB; an SSD gives 1-3 GB/s and 100,000-500,000 IOPS, a hard disk 100-200 MB/s and 100; a
    shared cache line slows cores down; a vector register holds up to 512 bits.
Expect: the latency ladder of this machine, at random and in a burst, beside these numbers; the same lines in
    another order; two threads on one cache line; one number at a time against vectors; disk and loopback.
"""

import numpy as np

from tfperf import Recipe, check_agreement, compare
from tfperf.caching import cache_folder
from tfperf.hardware.ceilings.disk import read_disk
from tfperf.hardware.ceilings.loopback import measure_loopback
from tfperf.hardware.ladder import chain_of, check_numba, measure_ladder
from tfperf.measure.words import format_bytes, format_seconds
from tfperf.report.hardware import mark_caches, scale_of_bytes
from tfperf.report.tables import bare_table

FIRST, FURTHER = 100e-9, 0.2e-9  # the source's seconds to DRAM: first access, and each further 8 bytes of a burst
CACHES = {1: (32, 64), 2: (256, 512), 3: (4096, 8192)}  # its KiB, by level
FAR = 2**27  # bytes, more than most caches hold
STEPS = 20_000  # from line to line, in one call
AS_FAR, COSTS = 0.7, 1.5  # times the time to memory, and with a line of its own, that are said to be too long


def main(recipe: Recipe) -> None:
    """Measure each kind of memory, and say where the source's numbers hold."""
    check_numba()
    from tfperf.hardware.ladder_loops import SCALAR, VECTOR, chase

    recipe.console.print("\nDo the loops do what is said of them?")
    ring = chain_of(2**20)
    met = sorted(chase(ring, 0, steps) for steps in range(len(ring) // 8))
    recipe.add(check_agreement("the chase meets every line once", met, range(0, len(ring), 8), 0.0))
    x, half = np.random.default_rng(recipe.flags.seed).random(2048, np.float32), np.float32(0.5)  # (numbers,)
    scalar, vector = np.zeros_like(x), np.zeros_like(x)
    SCALAR(x, scalar, half, 10)
    VECTOR(x, vector, half, 10)
    recipe.add(check_agreement("vectors, against one by one", vector, scalar, 0.0))

    ladder = measure_ladder(recipe.flags.quick, lambda words: recipe.console.print(words, markup=False))
    orders = {"random": chain_of(FAR), "in order": np.roll(np.arange(FAR // 8, dtype=np.uint64), -8)}
    places = dict.fromkeys(orders, 0)

    def walk(order):  # on from where it was: what was met has long left the caches when it is met again
        places[order] = chase(orders[order], places[order], STEPS)

    walks = {order: lambda order=order: walk(order) for order in orders}  # the same lines, the same loop
    loops = {"one by one": lambda: SCALAR(x, scalar, half, 100), "in vectors": lambda: VECTOR(x, vector, half, 100)}
    ratios = []
    limit = recipe.flags.time_limit / 2
    for what, candidates in ((f"{STEPS:,} lines of {format_bytes(FAR)}", walks), ("multiply and add", loops)):
        with recipe.progress(what) as show:
            comparison = compare(candidates, time_limit=limit, seed=recipe.flags.seed, on_progress=show)
        recipe.add(comparison)
        ratios.append(comparison.ratio(*candidates))
    show_table(recipe, ladder)
    explain(recipe, ladder, *ratios)
    recipe.plot(lambda figure: draw(figure, ladder))


def show_table(recipe: Recipe, ladder) -> None:
    """The source's numbers beside this machine's."""
    far, sizes = ladder.accesses[-1], {cache.level: cache.size for cache in ladder.caches}
    rows = [
        (f"L{level} cache", f"{low}-{high} KiB", format_bytes(sizes[level]) if level in sizes else "not told")
        for level, (low, high) in CACHES.items()
    ]
    rows += [
        ("memory, first access", "100 ns", format_seconds(far.random_seconds)),
        ("memory, 8 bytes more", "0.2 ns", format_seconds(far.burst_seconds)),
        ("memory, read", "40-100 GB/s by all", f"{8e-9 / far.burst_seconds:.3g} GB/s by one core"),
    ]
    if disk := read_disk(cache_folder() / "hardware"):
        one_at_a_time = f"{1 / disk.random_read_seconds:,.0f} a second, one at a time"
        rows += [
            ("disk, front to back", "SSD 1-3, hard disk 0.1-0.2 GB/s", f"{disk.bytes_per_second / 1e9:.3g} GB/s"),
            ("disk, 4 KiB at random", "SSD 100,000-500,000, hard disk 100 a second", one_at_a_time),
        ]
    if loopback := measure_loopback():
        rows += [
            ("loopback, there and back", "not told", format_seconds(loopback.round_trip_seconds)),
            ("loopback, in a stream", "Ethernet 0.125 GB/s", f"{loopback.bytes_per_second / 1e9:.3g} GB/s"),
        ]
    table = bare_table("", "the source", "this machine")
    for name, theirs, here in rows:
        table.add_row(name, theirs, here)
        recipe.fact(f"{name} (source: {theirs})", here)
    recipe.console.print(table)


def explain(recipe: Recipe, ladder, order, simd) -> None:
    """Say what the figures mean."""
    near, far = ladder.accesses[0], ladder.accesses[-1]
    worth = format_bytes(far.random_seconds / far.burst_seconds * 8)
    recipe.means(
        f"A number at a random place of {format_bytes(far.working_set)} is {format_seconds(far.random_seconds)} away, "
        f"one in the first cache {format_seconds(near.random_seconds)}. While one is on its way, a burst brings "
        f"{worth}; the same lines in order are {order.estimate:.0f} times as fast [{order.low:.0f}, {order.high:.0f}], "
        "as each is fetched before it is asked for."
    )
    for cache in ladder.caches[-1:]:
        inside = [one for one in ladder.accesses if one.working_set <= cache.size // 2]
        if inside and inside[-1].random_seconds > AS_FAR * far.random_seconds:
            size, away = format_bytes(inside[-1].working_set), format_seconds(inside[-1].random_seconds)
            recipe.means(
                f"The system tells of {format_bytes(cache.size)} of {cache.name}, yet {size} are {away} away, nearly "
                "as far as memory: others use that cache too, or addresses cost a walk through page tables."
            )
    for one in ladder.sharing:
        costs = "false sharing, as the source says" if one.times > COSTS else "not to be seen"
        same, own = format_seconds(one.same_line_seconds), format_seconds(one.own_line_seconds)
        recipe.fact(f"times as long with two threads on one cache line: {one.way} additions", one.times)
        recipe.means(f"Two threads count, {one.way}: in one line {same}, in two {own}: {one.times:.1f}x, {costs}.")
    recipe.means(
        f"Vectors do {simd.estimate:.1f} numbers in the time of one [{simd.low:.1f}, {simd.high:.1f}] in the first "
        "cache; a register of 512 bits holds 16 float32, one of 256 bits 8. No GPU's bus is measured here."
    )


def draw(figure, ladder) -> None:
    """Draw latency over working set, random and in a burst, with the source's numbers."""
    axes = figure.subplots()
    sizes = [one.working_set for one in ladder.accesses]
    axes.plot(sizes, [one.random_seconds * 1e9 for one in ladder.accesses], "o-", label="random")
    axes.plot(sizes, [one.burst_seconds * 1e9 for one in ladder.accesses], "s-", label="8 bytes of a burst")
    for seconds, words in ((FIRST, "source: first access to DRAM"), (FURTHER, "source: each further one")):
        axes.axhline(seconds * 1e9, color="tab:red", linestyle="--", linewidth=1)
        axes.annotate(words, (sizes[0], seconds * 1e9), (0, 3), textcoords="offset points", color="tab:red")
    for level, (low, high) in CACHES.items():
        label = "source: L1, L2, L3" if level == 1 else None
        axes.axvspan(low * 1024, high * 1024, color="tab:red", alpha=0.1, label=label)
    scale_of_bytes(axes, sizes[0], sizes[-1])
    axes.set_yscale("log")
    axes.set_ylim(bottom=min(one.burst_seconds for one in ladder.accesses) * 1e9 / 8)
    mark_caches(axes, ladder.caches, at_top=False)
    axes.set_ylabel("ns")
    axes.set_title("How far memory is; dotted: the caches of this machine", loc="left")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
