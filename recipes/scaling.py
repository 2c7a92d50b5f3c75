"""How many workers are worth it?

Source: 002, 6.2.3.1 基础概念
Claim: a step takes max(t1, t2), with t1 for computing the gradients of b images and t2 for exchanging them; n workers
    of batch b equal one of n b, and ideally are n times as fast; take b so large that t1 > t2. In 6.2.3.2: arithmetic
    for each weight: Inception > ResNet > AlexNet. The source names no figure.
Holds not: its figures are no cluster's: the workers are processes of one machine, on slowed connections.
Needs: TensorFlow; Linux, which slows connections down; no GPU, no data.
Time: about 80 s on 2 cores; with --quick about 30 s.
Shows: step_seconds, ring_seconds, knee
Try:
    - --batch 256: t1 grows and t2 stays, so more workers pay.
    - --megabytes 200: t2 is a quarter, so even in turns the exchange costs little.
"""

from contextlib import ExitStack
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe, get_net
from tfperf.hardware import usable_cores
from tfperf.parallel import Ring
from tfperf.scaling import StepTimes, Workload, mean_gradient, measure_step


def step_seconds(forward, backward, exchange, overlap):
    """Predict a step: the exchange hides behind the backward pass at best, as before it there is nothing to send."""
    return forward + (max(backward, exchange) if overlap else backward + exchange)


def ring_seconds(size, workers, latency, bandwidth):
    """Predict a ring: twice round, an n-th of the bytes a hop, so that only the latency grows with the workers."""
    return 2 * (workers - 1) * (latency + size / workers / bandwidth)


def knee(throughputs):
    """Find the last worker who brings at least half of what the first one did."""
    gains = np.diff(throughputs, prepend=0.0)  # throughputs: of 1, 2, 3, ... workers
    return int(np.flatnonzero(gains >= throughputs[0] / 2)[-1]) + 1


FORWARD, MOST, NET, ROUNDS = 1 / 3, 512, "lenet", 5  # share of t1 before the first gradient; workers to predict
ALEXNET = {34_848: 55**2, 307_200: 27**2, 884_736: 13**2, 663_552: 13**2, 442_368: 13**2}  # weights: places used at
ALEXNET |= {9216 * 4096: 1, 4096**2: 1, 4096 * 1000: 1}  # from Krizhevsky et al. (2012), without biases


def main(recipe: Recipe) -> None:
    """Measure t1, t2 and steps of local workers, predict these steps, and then those of many workers."""
    batch, seed, counts = recipe.flags.batch, recipe.flags.seed, (1, 2) if recipe.flags.quick else (1, 2, 4)
    parts = {n: batch * counts[-1] // n for n in counts}  # of one batch for all: strong scaling
    cases = [(n, each) for n in counts for each in sorted({batch, parts[n]})]
    with ExitStack() as stack:
        rings = {n: stack.enter_context(Ring(n, int(recipe.flags.megabytes * 1e6), deadline=200)) for n in counts}
        means = {n: mean_gradient(ring, NET, parts[n], seed=seed) for n, ring in rings.items()}
        for n in counts[1:]:
            recipe.agrees(f"gradient of {n} workers of batch {parts[n]}", means[n], means[1], 1e-4)
        tries = [[measure_step(rings[n], NET, each, seed=seed) for n, each in cases] for _ in range(ROUNDS)]
    times = {case: StepTimes(*median) for case, median in zip(cases, np.median(tries, axis=0), strict=True)}
    two, size = times[2, batch], means[1].nbytes
    latency, bandwidth = two.latency / 2, size / (two.exchange - two.latency)  # two hops, each of half the bytes
    recipe.finds(f"With 2 workers a hop takes {1e6 * latency:.0f} us, and its bytes go at {bandwidth / 1e6:.0f} MB/s.")
    exchange = partial(ring_seconds, size, latency=latency, bandwidth=bandwidth)
    show_steps(recipe, times, exchange)
    measured = {n: n * batch / times[n, batch].in_turns for n in counts}
    recipe.plot(draw, foretell(recipe, times[1, batch].compute, exchange), measured)
    count_work(recipe)


def show_steps(recipe: Recipe, times: dict, exchange) -> None:
    """Show steps beside those predicted from t1 and the link, and what the workers gain."""
    rows, errors = [], []
    for (n, each), one in times.items():
        both, longer = one.compute + exchange(n), max(one.compute, exchange(n))
        errors += [abs(both / one.in_turns - 1), abs(longer / one.at_once - 1)] if n > 1 else []
        cells = one.compute, one.exchange, both, one.in_turns, longer, one.at_once
        rows.append((n, each, *(f"{1e3 * cell:.1f}" for cell in cells), f"{n * each / one.in_turns:,.0f}"))
        for name, value in one._asdict().items():
            recipe.fact(f"seconds, {n} workers of batch {each}: {name}", float(value))
    recipe.console.print("\nMilliseconds; t1 + t2 and max(t1, t2) are predicted, and stand before what was measured")
    recipe.table(("workers", "b", "t1", "t2", "t1 + t2", "in turns", "max", "at once", "images/s"), rows)
    recipe.finds(f"Predicted steps are off by {np.median(errors):.0%} in the median, and by {max(errors):.0%} at most.")
    n, each = max(times)
    alone, together = times[1, each], times[n, each]
    for what, one, steps in (("a batch each (weak scaling)", alone, n), ("one batch (strong)", times[1, n * each], 1)):
        measured = steps * one.in_turns / together.in_turns
        predicted = steps * one.compute / (alone.compute + exchange(n))
        recipe.finds(f"{what}: the speed-up of {n} workers in turns is {measured:.2f}; t1 predicts {predicted:.2f}.")
    slower = together.compute / alone.compute
    recipe.finds(f"They share {usable_cores()} cores: t1 of all at once is {slower:.1f} times that of one alone.")


def foretell(recipe: Recipe, t1: float, exchange) -> dict:
    """Predict steps of many workers with a core each: name -> images/s by workers, from 1 on."""
    every, curves = np.arange(1, MOST + 1), {}
    for name, overlap in {"ring, overlapped": True, "ring, in turns": False}.items():
        steps = np.array([step_seconds(FORWARD * t1, (1 - FORWARD) * t1, exchange(n), overlap) for n in every])
        curves[name] = every * recipe.flags.batch / steps
        last = knee(curves[name])
        recipe.fact(f"knee, workers: {name}", last)
        gain = last * t1 / steps[last - 1]
        recipe.finds(f"{name}, a core each: the last worker worth it is number {last}; speed-up {gain:.1f}.")
    recipe.corrects(
        "a step takes max(t1, t2) only if gradients may be a step old, as here with both at once. Else the exchange "
        "hides behind the backward pass alone, and without overlap a step takes t1 + t2. In a ring a worker sends "
        "2 (n - 1) / n of m. The network is the bottleneck where t2 > t1: small batches, large nets, slow links."
    )
    return curves


def count_work(recipe: Recipe) -> None:
    """Count multiply-adds for each weight, and see whether they tell the time."""
    own = {name: get_net(name) for name in ("mlp", "lenet", "mnist_cnn", "resnet18")}
    ways = {name: partial(tf.function(net), tf.zeros((32, *net.input_shape[1:]))) for name, net in own.items()}
    nets = {"Inception v3": keras.applications.InceptionV3(weights=None)}
    nets |= {"ResNet-50": keras.applications.ResNet50(weights=None)} | own
    loads = {name: Workload.from_net(net, 1, 1.0) for name, net in nets.items()}
    counts = {"AlexNet": (sum(weights * places for weights, places in ALEXNET.items()), sum(ALEXNET))}
    counts |= {name: (sum(layer.work for layer in load.layers), load.size / 4) for name, load in loads.items()}
    rows, each = [], {}
    for name, (work, weights) in counts.items():
        each[name] = work / weights
        recipe.fact(f"multiply-adds for each weight: {name}", each[name])
        rows.append((name, f"{work / 1e6:,.1f}", f"{weights / 1e6:.2f}", f"{each[name]:.0f}"))
    recipe.table(("net", "10^6 multiply-adds", "10^6 weights", "for each weight"), rows)
    found = recipe.compare(ways, tolerance=None, what="32 examples forward").measurements
    rates = {one.name: 32 * counts[one.name][0] / one.median / 1e9 for one in found}
    slow, *_, fast = sorted(rates, key=rates.get)
    recipe.finds(
        f"AlexNet needs {each['Inception v3'] / each['AlexNet']:.0f} times Inception v3's batch for the same t1 / t2, "
        f"if work tells time. But {slow} does {rates[slow]:.1f} billion a second here, {fast} {rates[fast]:.1f}."
    )


def draw(figure, curves: dict, measured: dict) -> None:
    """Draw images/s against workers: predicted, measured, and ideal."""
    axes = figure.subplots()
    for color, (name, curve) in enumerate(curves.items()):
        axes.loglog(np.arange(1, len(curve) + 1), curve, f"C{color}", label=f"{name}: predicted, a core each")
        axes.plot(knee(curve), curve[knee(curve) - 1], f"C{color}|", markersize=20)
    axes.loglog(list(measured), list(measured.values()), "ko", label="in turns: measured here")
    axes.loglog([1, MOST], np.array([1, MOST]) * curves["ring, overlapped"][0], "k:", label="n times as fast")
    axes.set(xlabel="workers (|: the knee)", ylabel="images/s", title="How many workers are worth it?")
    axes.legend()


if __name__ == "__main__":
    Recipe(__file__, batch=64, megabytes=Flag(50.0, "MB/s to which each connection is slowed down")).run(main)
