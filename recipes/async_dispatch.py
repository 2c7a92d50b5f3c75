"""What does not waiting buy, and cost?

Source: 001, 12.2. 异步计算
Claim: N rounds with t1 for the front end, t2 for the computation and t3 for the way back take N (t1 + t2 + t3) if each
    result is waited for, and t1 + N t2 + t3 if not. An over-filled queue takes memory: synchronize each minibatch.
Holds not: where the front end takes longer than the computation: then it sets the pace, and t2 hides behind t1.
Needs: TensorFlow; no GPU, no data; 2 cores.
Time: about 30 s on 2 cores; with --quick about 15 s.
Shows: dispatch_without_waiting, wait_each_time, wait_once
Try:
    - --products 16 --time-limit 60: eight times the computation, so hiding the front end saves a smaller share.
    - --queue 400: four times the rounds without a wait take more memory.
"""

import time

import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe, Verdict
from tfperf.measure import PeakMemory


def dispatch_without_waiting():
    """Have eager calls return once their operations are queued; on a CPU TensorFlow waits unless told not to."""
    tf.config.experimental.set_synchronous_execution(False)


def wait_each_time(prepare, compute, rounds):
    """Read each result before the next round begins: N (t1 + t2 + t3)."""
    for _ in range(rounds):
        result = compute(prepare()).numpy()
    return result


def wait_once(prepare, compute, rounds):
    """Read the last result only; the queue keeps its order, so when it is done, all are: t1 + N max(t1, t2) + t3."""
    for _ in range(rounds):
        result = compute(prepare())
    return result.numpy()


SIZE, ROUNDS, TRIES = 512, 20, 15  # of the square matrices; N; how often t1, t2, t3 and both totals are taken, in turns


def main(recipe: Recipe) -> None:
    """Predict and measure what waiting once, and not each time, saves."""
    tf.config.threading.set_intra_op_parallelism_threads(1)  # the back end's; the other core is the front end's
    generator = np.random.default_rng(recipe.flags.seed)
    rotation = tf.constant(np.linalg.qr(generator.standard_normal((SIZE, SIZE)))[0], tf.float32)  # keeps lengths

    def prepare():
        return tf.constant(generator.random((SIZE, SIZE), np.float32))

    def compute(x):
        for _ in range(recipe.flags.products):
            x = tf.raw_ops.MatMul(a=x, b=rotation)  # tf.matmul asks for the shape, and so waits
        return x

    ready = prepare()
    recipe.finds(f"By default an eager call on a CPU returns after {returns_in(lambda: compute(ready)) * 1e6:.0f} us.")
    dispatch_without_waiting()
    recipe.finds(f"With set_synchronous_execution(False): {returns_in(lambda: compute(ready)) * 1e6:.0f} us.")
    recipe.corrects(
        "TensorFlow is asynchronous by itself on GPUs only; and PyTorch's queue is a CUDA stream, not Python's."
    )
    recipe.agrees("waiting once", *(wait(lambda: ready, compute, 5) for wait in (wait_once, wait_each_time)), 0.0)
    ways = {
        "waiting each time": lambda: wait_each_time(prepare, compute, ROUNDS),
        "waiting once": lambda: wait_once(prepare, compute, ROUNDS),
    }
    comparison = recipe.compare(ways, tolerance=None, what=f"{ROUNDS} rounds, both ways")
    ratio = comparison.ratio(*ways)
    why = "the front end's work hides behind the computation" if ratio.verdict is Verdict.FASTER else "no core is free"
    recipe.finds(f"Waiting once is {ratio.estimate:.2f} times as fast [{ratio.low:.2f}, {ratio.high:.2f}]: {why}.")
    totals = check_model(recipe, ways, prepare, compute)
    waited, queued = (growth(compute, ready, recipe.flags.queue, every) for every in (1, recipe.flags.queue))
    recipe.fact("bytes of memory that waiting for each round takes", waited)
    recipe.fact(f"bytes of memory that {recipe.flags.queue} rounds take that nobody waits for", queued)
    recipe.finds(
        f"{recipe.flags.queue} queued rounds take {queued / 2**20:.0f} MiB, with waits {waited / 2**20:.0f} MiB."
    )
    recipe.plot(draw, totals)


def seconds_of(function) -> float:
    """Time one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def returns_in(call) -> float:
    """Time until a call returns."""
    results = []
    seconds = np.median([seconds_of(lambda: results.append(call())) for _ in range(20)])
    results[-1].numpy()
    return float(seconds)


def fit(prepare, compute) -> tuple[float, float, float]:
    """Measure t1, t2 and t3: to fill the queue, to work through it, and to wait for each result."""
    ready, last = prepare(), []
    t1 = seconds_of(lambda: last.extend(compute(prepare()) for _ in range(ROUNDS))) / ROUNDS
    last[-1].numpy()  # the queue is empty again
    t2 = seconds_of(lambda: wait_once(lambda: ready, compute, ROUNDS)) / ROUNDS
    return t1, t2, max(0.0, seconds_of(lambda: wait_each_time(lambda: ready, compute, ROUNDS)) / ROUNDS - t2)


def check_model(recipe: Recipe, ways: dict, prepare, compute) -> dict:
    """Predict both totals from t1, t2 and t3, and measure them; all in seconds."""
    tries = [(*fit(prepare, compute), *map(seconds_of, ways.values())) for _ in range(TRIES)]
    t1, t2, t3, *measured = map(float, np.median(tries, axis=0))
    for name, value in (("t1, front end", t1), ("t2, computation", t2), ("t3, the result's way back", t3)):
        recipe.fact(f"{name}: seconds", value)
    recipe.finds(f"t1 is {t1 * 1e3:.2f} ms, t2 {t2 * 1e3:.2f} ms, t3 {t3 * 1e3:.2f} ms.")
    predicted = ROUNDS * (t1 + t2 + t3), t1 + ROUNDS * max(t1, t2) + t3
    for way, one, other in zip(ways, predicted, measured, strict=True):
        recipe.fact(f"measured against predicted: {way}", other / one - 1)
        recipe.finds(f"{way}: predicted {one * 1e3:.1f} ms, measured {other * 1e3:.1f} ms ({other / one - 1:+.0%}).")
    recipe.corrects(
        "without waiting N rounds take t1 + N max(t1, t2) + t3; t1 + N t2 + t3 only while t2 is the longer."
    )
    return {"predicted": predicted, "measured": measured}


def growth(compute, ready, rounds: int, every: int) -> int:
    """Measure by how many bytes memory grows in so many rounds, with a wait after every so many."""
    matrix, peak = ready.numpy(), PeakMemory()
    before = peak.read().resident_before
    for done in range(1, rounds + 1):
        result = compute(tf.constant(matrix))
        if done % every == 0:
            result.numpy()
    return peak.read().resident - before


def draw(figure, totals: dict) -> None:
    """Draw both totals, predicted and measured."""
    axes = figure.subplots()
    for shift, (label, values) in zip((-0.2, 0.2), totals.items(), strict=True):
        axes.bar(np.arange(2) + shift, np.multiply(values, 1e3), 0.4, label=label)
    axes.set_xticks(np.arange(2), ("waiting each time", "waiting once"))
    axes.set(ylabel="ms", title=f"{ROUNDS} rounds")
    axes.legend()


if __name__ == "__main__":
    products, queue = Flag(2, "matrix products in one round"), Flag(100, "rounds that nobody waits for")
    Recipe(__file__, batch=1, products=products, queue=queue).run(main)
