"""What does not waiting buy, and cost?

Command: python recipes/async_dispatch.py, or tfperf run async_dispatch
Needs: TensorFlow; no GPU, no data; 2 cores.
Time: about 30 s on 2 cores; with --quick about 15 s.
Source: with t1 for the front end, t2 for the computation and t3 for the answer's way back, N rounds take
    N (t1 + t2 + t3) if each answer is waited for, and t1 + N t2 + t3 if only the last is. A queue that nobody waits
    for fills memory, so wait for each minibatch.
Expect: eager TensorFlow on a CPU waits, unless it is told not to. Told so: t1, t2 and t3 measured alone, both totals
    predicted from them and measured, and the memory of a queue that grows.
"""

import time

import numpy as np
import tensorflow as tf

from tfperf import Recipe, Verdict, check_agreement, compare
from tfperf.measure.memory import PeakMemory

SIZE = 512  # of the square matrices: 1 MiB of float32 each
PRODUCTS = 2  # in one round of the back end
ROUNDS = 20  # N
FITTED = 12  # rounds from which t1, t2 and t3 are taken
TRIES = 15  # of taking them and of measuring both totals, in turns: what slows the machine slows both
QUEUE = 100  # rounds that nobody waits for


class Loop:
    """A front end that makes matrices, and a back end that multiplies them."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        rotation = np.linalg.qr(self.generator.standard_normal((SIZE, SIZE)))[0]  # leaves lengths as they are
        self.weights = tf.constant(rotation, tf.float32)

    def prepare(self) -> np.ndarray:
        """The front end's work: a new (SIZE, SIZE) matrix."""
        return self.generator.random((SIZE, SIZE), np.float32)

    def compute(self, x) -> tf.Tensor:
        """The back end's work: what is called returns as soon as the operations are queued."""
        for _ in range(PRODUCTS):
            x = tf.raw_ops.MatMul(a=x, b=self.weights)  # tf.matmul looks at the shape, and waits until there is one
        return x

    def waiting_each_time(self, rounds: int) -> np.ndarray:
        """N (t1 + t2 + t3)."""
        for _ in range(rounds):
            answer = self.compute(tf.constant(self.prepare())).numpy()
        return answer

    def waiting_once(self, rounds: int) -> np.ndarray:
        """t1 + N t2 + t3."""
        for _ in range(rounds):
            answer = self.compute(tf.constant(self.prepare()))
        return answer.numpy()  # the queue keeps its order: when the last is done, all are


def main(recipe: Recipe) -> None:
    """Predict and measure what waiting once, and not each time, saves."""
    tf.config.threading.set_intra_op_parallelism_threads(1)  # the back end's; the other core is the front end's
    told_to_wait = returns_in(Loop(recipe.flags.seed))
    tf.config.experimental.set_synchronous_execution(False)
    told_not_to = returns_in(Loop(recipe.flags.seed))

    recipe.console.print("\nAre the answers the same?")
    one, other = Loop(recipe.flags.seed), Loop(recipe.flags.seed)
    recipe.add(check_agreement("waiting once", one.waiting_once(5), other.waiting_each_time(5), 0.0))

    loop = Loop(recipe.flags.seed)
    candidates = {
        "waiting each time": lambda: loop.waiting_each_time(ROUNDS),
        "waiting once": lambda: loop.waiting_once(ROUNDS),
    }
    with recipe.progress(f"{ROUNDS} rounds, both ways") as show:
        comparison = compare(candidates, time_limit=recipe.flags.time_limit, seed=recipe.flags.seed, on_progress=show)
    recipe.add(comparison)
    ratio = comparison.ratio("waiting each time", "waiting once")
    hidden = "the front end's work is hidden behind the computation, and nobody waits for the way back"
    why = hidden if ratio.verdict is Verdict.FASTER else "to hide the front end's work, a second core must be free"
    recipe.means(
        f"Not waiting makes the loop {ratio.estimate:.2f} times as fast [{ratio.low:.2f}, {ratio.high:.2f}]: {why}. "
        "More than t1 and t3 cannot be saved."
    )
    recipe.means(
        f"By default an eager call on a CPU returns after {told_to_wait * 1e6:.0f} us, when its answer is there: it is "
        f"synchronous. With set_synchronous_execution(False) it returns after {told_not_to * 1e6:.0f} us."
    )
    totals = check_model(recipe, loop)
    grown = {every: growth(loop, every) for every in (1, QUEUE)}
    recipe.fact("bytes of memory that waiting for each round takes", grown[1])
    recipe.fact(f"bytes of memory that {QUEUE} rounds take that nobody waits for", grown[QUEUE])
    recipe.means(
        f"The price is memory: {QUEUE} rounds queued take {grown[QUEUE] / 2**20:.0f} MiB, with a wait after each "
        f"{grown[1] / 2**20:.0f} MiB. So wait once for each minibatch."
    )
    recipe.plot(lambda figure: draw(figure, totals, grown))


def returns_in(loop: Loop) -> float:
    """Seconds until a call returns, the back end having nothing else to do."""
    x, seconds = tf.constant(loop.prepare()), []
    for _ in range(20):
        start = time.perf_counter()
        answer = loop.compute(x)
        seconds.append(time.perf_counter() - start)
        answer.numpy()
    return float(np.median(seconds))


def check_model(recipe: Recipe, loop: Loop) -> dict:
    """Take t1, t2 and t3, predict both totals, and measure them; way -> (predicted, measured) seconds."""
    times, totals = [], []
    for _ in range(TRIES):
        t1, t2, t3 = fit(loop)
        times.append((t1, t2, t3))
        pace = max(t1, t2)  # the slower of the two sets it; the source has t2
        predicted = ROUNDS * (t1 + t2 + t3), t1 + ROUNDS * pace + t3
        measured = seconds_of(lambda: loop.waiting_each_time(ROUNDS)), seconds_of(lambda: loop.waiting_once(ROUNDS))
        totals.append((predicted, measured))
    names = ("t1, front end", "t2, computation", "t3, the answer's way back")
    for name, values in zip(names, np.array(times).T, strict=True):
        recipe.fact(f"{name}: seconds", float(np.median(values)))
        recipe.console.print(f"{name}: {np.median(values) * 1e3:.3f} ms", markup=False)
    found = {}
    for place, way in enumerate(("waiting each time", "waiting once")):
        predicted, measured = np.array([(one[0][place], one[1][place]) for one in totals]).T
        middle = np.argsort(measured / predicted)[TRIES // 2]  # the try whose error is the median
        found[way] = float(predicted[middle]), float(measured[middle])
        error = found[way][1] / found[way][0] - 1
        recipe.fact(f"measured against predicted: {way}", error)
        recipe.means(
            f"{way}: {ROUNDS} rounds are predicted to take {found[way][0] * 1e3:.0f} ms, and take "
            f"{found[way][1] * 1e3:.0f} ms ({error:+.0%})."
        )
    return found


def fit(loop: Loop) -> tuple[float, float, float]:
    """t1, t2 and t3, in seconds: what a loop takes to fill the queue, to work through one, and if it waits."""
    ready, last = tf.constant(loop.prepare()), []

    def fill():
        for _ in range(FITTED):
            last[:] = [loop.compute(tf.constant(loop.prepare()))]

    def work():
        for _ in range(FITTED):
            last[:] = [loop.compute(ready)]
        last[0].numpy()

    def wait():
        for _ in range(FITTED):
            loop.compute(ready).numpy()

    t1 = seconds_of(fill) / FITTED
    last[0].numpy()  # the queue is empty again
    t2 = seconds_of(work) / FITTED
    return t1, t2, max(0.0, seconds_of(wait) / FITTED - t2)


def seconds_of(function) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def growth(loop: Loop, every: int) -> int:
    """Bytes by which memory grows in QUEUE rounds with matrices that are at hand, waiting after so many."""
    matrix, peak = loop.prepare(), PeakMemory()
    before = peak.read().resident_before
    for done in range(1, QUEUE + 1):
        answer = loop.compute(tf.constant(matrix))
        if done % every == 0:
            answer.numpy()
    return peak.read().resident - before


def draw(figure, totals: dict, grown: dict) -> None:
    """Draw both totals, predicted and measured, and the memory."""
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for shift, label, which in ((-0.2, "predicted", 0), (0.2, "measured", 1)):
        left.bar(np.arange(2) + shift, [total[which] * 1e3 for total in totals.values()], 0.4, label=label)
    left.set_xticks(np.arange(2), totals)
    left.set_ylabel("ms")
    left.set_title(f"{ROUNDS} rounds", loc="left")
    left.legend()
    right.bar(list(totals), [size / 2**20 for size in grown.values()], color="tab:green")
    right.set_ylabel("MiB")
    right.set_title(f"Memory that {QUEUE} rounds take", loc="left")


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
