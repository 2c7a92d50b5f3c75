"""Why does the ring's time not grow with its size?

Source: 001, 12.7.2. 环同步(Ring Synchronization)
Claim: with the gradient in n blocks, of which block i starts at node i, the time of adding up does not grow with the
    ring. 12.7.1: by strategy, the same synchronisation takes 15 to 80 ms.
Expect: bytes counted at the sockets of each rank, and times beside those that a link fitted to 2 ranks predicts.
Holds not: for small tensors, whose 2 (n - 1) starts rule; where ranks share cores, which copy 2 (n - 1) arrays anyway.
Needs: Linux, which slows connections down; no GPU, no data.
Time: about 100 s on 2 cores; with --quick about 35 s.
Shows: ring_allreduce, ring_seconds, gather_seconds
Try: --kilobytes 4: 4 ranks take far longer than 2 on any link, as each of them sends 6 messages and not 2.
"""

from contextlib import ExitStack
from functools import cache, partial

import numpy as np

from tfperf import Flag, Recipe
from tfperf.measure import format_bytes, format_seconds
from tfperf.parallel import Ring
from tfperf.scaling import fit_link, sweep


def ring_allreduce(blocks):
    """Send one n-th of the array to the next node 2 (n - 1) times: first the sums grow, then they are handed on."""
    n = len(blocks)  # blocks[node][block]: the node's own numbers, replaced by the sums of all nodes
    for step in range(2 * (n - 1)):
        sent = [blocks[node][(node - step) % n].copy() for node in range(n)]  # by all nodes at once
        for node in range(n):
            there = blocks[(node + 1) % n][(node - step) % n]
            there[:] = there + sent[node] if step < n - 1 else sent[node]


def ring_seconds(n, size, message_seconds):
    """Predict the ring's time: its bytes stay below twice the array, but its 2 (n - 1) messages grow with n."""
    return 2 * (n - 1) * message_seconds(size / n)


def gather_seconds(n, size, message_seconds):
    """Predict the time of adding up at one node: one after the other, n - 1 whole arrays come in, and n - 1 go out."""
    return 2 * (n - 1) * message_seconds(size)


SIZES, FITTED = (2, 3, 4), (0.25, 0.5, 1, 2, 4)  # ranks; what a link is fitted to, as multiples of the array
WAYS = {"ring": ("allreduce", ring_seconds, 2), "at one rank": ("gather_to_one", gather_seconds, 1)}
RINGS = {"double links": (1, 2, 3, 4, 5, 6, 7, 8, 1), "single links": (1, 4, 6, 3, 5, 8, 2, 7, 1)}  # of eight V100


def main(recipe: Recipe) -> None:
    """Add up in one process, then between processes over slow links and as fast as this machine copies."""
    size, slow, found = recipe.flags.kilobytes * 1024, recipe.flags.megabits * 125_000, {}  # bytes; bytes/s
    step_by_step(recipe)
    with ExitStack() as stack:
        every = [{n: stack.enter_context(Ring(n, limit, 120)) for n in SIZES} for limit in (slow, None)]
        why = "each rank of the ring sends 2 (n - 1) / n arrays, always below 2; rank 0 alone sends n - 1"
        found["slow links"] = compare_ways(recipe, every[0], "slow links", size, 1, why)
        found["full speed"] = compare_ways(recipe, every[1], "full speed", size, 8, "the ranks share the cores")
        compare_ways(recipe, every[1], "small tensors", 1024, 50, "the 2 (n - 1) starts decide, and the ring grows too")
    ways = ((gather_seconds, 5), (gather_seconds, 4), (ring_seconds, 4))  # by the CPU, a fifth; by one GPU; in parts
    cpu, gpu, parts = (format_seconds(formula(n, 160e6, lambda part: part / 16e9)) for formula, n in ways)
    recipe.corrects(
        f"15 to 80 ms are three strategies on one bus of 16 GB/s, not three buses: 160 MB of 4 GPUs take {cpu} by the "
        f"CPU, {gpu} by one GPU, {parts} in parts. Measured above with 4 ranks: the last two."
    )
    recipe.corrects("the ring is not different in essence from other ways: the book itself names that misconception.")
    recipe.corrects("two rings suit eight V100 in pairs; with NVSwitch NCCL picks rings, trees or sums in the switch.")
    recipe.plot(draw, found)


def step_by_step(recipe: Recipe) -> None:
    """Run the ring's steps over arrays of one process, and compare with another order."""
    arrays = [numbers(rank, 2**20) for rank in range(4)]
    nodes = [np.array_split(array.copy(), 4) for array in arrays]
    ring_allreduce(nodes)
    sums, in_order = [np.concatenate(blocks) for blocks in nodes], sum(arrays)
    recipe.agrees("the ring, step by step", sums[0], in_order, 1e-6)
    recipe.agrees("the other nodes, to the last bit", sums[1:], sums[:1] * 3, 0.0)
    recipe.corrects(
        f"order does matter, in the last bits: {np.mean(sums[0] != in_order):.0%} of the ring's sums differ from those "
        "in order of the nodes. All nodes hold the same bits, since each sum is made once and handed on."
    )


@cache
def numbers(rank, size):
    """Make the array of a rank, once."""
    return np.random.default_rng(rank).standard_normal(size // 4).astype(np.float32)


def add_up(member, way, size, repeats):
    """Add up on one rank; gives some of the sums, and the bytes that the rank's sockets took each time."""
    before = member.bytes_sent
    for _ in range(repeats):
        total = getattr(member, way)(numbers(member.rank, size))
    return total[::97], (member.bytes_sent - before) / repeats


def sweep_sizes(member, way, sizes):
    """Time the sums of these sizes on one rank, each begun together; gives seconds, (repeats, sizes)."""
    meet, add = partial(member.allreduce, np.zeros(2)), getattr(member, way)
    return sweep(lambda size: add(numbers(member.rank, size)), sizes, 20, before=meet)


def compare_ways(recipe: Recipe, rings: dict, what: str, size: int, repeats: int, why: str) -> np.ndarray:
    """Count and time both ways at each n; gives seconds, (measured or predicted, ways, n)."""
    calls, rows, predicted = {}, [], []
    for name, (way, formula, blocks) in WAYS.items():
        sizes = [int(size * times) for times in FITTED]
        link = fit_link(np.array(sizes) / blocks, np.max(rings[2].run(sweep_sizes, [(way, sizes)] * 2), axis=0) / 2)
        for n, ring in rings.items():
            label, expected = f"{name}, n={n}", sum(numbers(rank, size) for rank in range(n))[::97]
            calls[label] = partial(ring.run, add_up, [(way, size, repeats)] * n)
            sums, sent = zip(*calls[label](), strict=True)
            recipe.agrees(f"{what}: {label}", sums, [expected] * n, 1e-6)
            recipe.fact(f"most arrays sent by a rank: {what}, {label}", max(sent) / size)
            rows.append([label, f"{sent[0] / size:.3f}", f"{sent[-1] / size:.3f}"])
            predicted.append(formula(n, size, link.seconds))
    times = [one.median / repeats for one in recipe.compare(calls, tolerance=None, what=what).measurements]
    rows = [(*row, *map(format_seconds, seconds)) for row, *seconds in zip(rows, times, predicted, strict=True)]
    recipe.table((f"{format_bytes(size)}, {what}", "sent by rank 0", "by the last", "measured", "predicted"), rows)
    recipe.finds(
        f"{what}: from 2 to 4 ranks the time grows {times[2] / times[0]:.2f} times around the ring, "
        f"{times[5] / times[3]:.2f} times at one rank: {why}."
    )
    return np.reshape([times, predicted], (2, len(WAYS), len(SIZES)))


def draw(figure, found: dict) -> None:
    """Draw the time against n, and the two rings over the links of a server with eight V100."""
    *panels, server = figure.subplots(1, 3)
    for axes, (title, seconds) in zip(panels, found.items(), strict=True):
        for color, (name, times, predicted) in enumerate(zip(WAYS, *seconds, strict=True)):
            axes.plot(SIZES, times, f"C{color}o", label=name)
            axes.plot(SIZES, predicted, f"C{color}--", label="predicted")
        axes.set(xticks=SIZES, ylim=0, xlabel="ranks", ylabel="seconds", title=title)
        axes.legend()
    x, y = (turn(np.pi / 4 * np.arange(-1, 8)) for turn in (np.sin, np.cos))  # the place of GPU 1 is at 1
    for width, (name, ring) in zip((5, 1.5), RINGS.items(), strict=True):
        server.plot(x[list(ring)], y[list(ring)], lw=width, label=name)
    for gpu in RINGS["double links"][1:]:
        server.text(x[gpu], y[gpu], str(gpu), ha="center", va="center", bbox={"boxstyle": "circle", "fc": "white"})
    server.set(title="Two rings of eight V100", aspect="equal", xlim=(-1.4, 1.4), ylim=(-1.9, 1.4))
    server.axis("off")
    server.legend(loc="lower center")


if __name__ == "__main__":
    kilobytes, megabits = Flag(2048, "KiB of the array of each rank"), Flag(1600, "Mbit/s to which links are slowed")
    Recipe(__file__, batch=1, kilobytes=kilobytes, megabits=megabits).run(main)
