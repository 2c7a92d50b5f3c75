"""What does Keras's fit cost per step, and what does steps_per_execution save?

Source: 003, Overhead
Claim: a framework takes time to schedule work, but CPU and GPU work side by side: where the GPU has enough to do, the
    overhead is no bottleneck. The source names no figure.
Expect: the time of a step of a small net, for 1 to 64 steps a call, with a + b/k fitted to it; beside it a loop without
    `fit`, as a graph and compiled by XLA; and what a callback sees of all that.
Holds not: for nets whose steps take long; and in XLA's loop convolutions are slow on a CPU.
Needs: TensorFlow; no GPU, no data.
Time: about 40 s on 2 cores; with --quick about 20 s.
Shows: many_steps_a_call, epoch_in_one_call, StopBelow
Try: --batch 512: a step takes longer and a call of fit does not, so the loop by XLA gains less.
"""

import math
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from tfperf import Comparison, Recipe, get_net


def many_steps_a_call(net, steps):
    """Have `fit` call TensorFlow once for so many steps, and Python's callbacks in between no more often."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile("adam", loss, steps_per_execution=steps)  # the last call of an epoch takes the steps that are left


def epoch_in_one_call(net, inputs, labels, batch, jit_compile):
    """Leave `fit` and its iterator: a compiled loop gathers each batch of a shuffled epoch, and trains."""
    inputs, labels = tf.constant(inputs), tf.constant(labels)  # in memory, as a whole
    net.optimizer.build(net.trainable_variables)  # a loop must not make variables

    @tf.function(autograph=False, jit_compile=jit_compile)
    def epoch(order):  # (examples,): their numbers, shuffled; those beyond the last whole batch have to wait
        def step(begin):
            rows = tf.slice(order, [begin], [batch])  # XLA must know how many
            net.train_step((tf.gather(inputs, rows), tf.gather(labels, rows)))
            return [begin + batch]

        tf.while_loop(lambda begin: begin + batch <= tf.size(order), step, [0], parallel_iterations=1)
        return net.get_metrics_result()

    return epoch


class StopBelow(keras.callbacks.Callback):
    """Stop once the loss is small: `fit` asks after each call only, so with k steps a call up to k - 1 too late."""

    def __init__(self, loss):
        super().__init__()
        self.loss, self.asked = loss, []

    def on_train_batch_end(self, batch, logs=None):
        """Look at the mean loss of the epoch so far."""
        self.asked.append(batch)  # the last step of the call, counted from 0
        self.model.stop_training = logs["loss"] < self.loss


CALLS, EPOCH, ENOUGH = (1, 4, 16, 64), 128, 0.05  # steps of a call; of an epoch; share of a step that is not worth more
ONCE, LOOP, BY_XLA = "fit of one step", "a loop, without fit", "the loop by XLA"


def main(recipe: Recipe) -> None:
    """Train the perceptron for an epoch, with ever more steps a call, and beside it in loops."""
    flags = recipe.flags
    inputs = tf.random.stateless_normal([EPOCH * flags.batch, 512], [flags.seed, 0])
    labels = tf.cast(inputs[:, 0] > 0, tf.int64)
    fits = {steps: build(flags.seed, steps) for steps in CALLS}
    looped = {name: build(flags.seed, 1) for name in (LOOP, BY_XLA)}
    epochs = {name: epoch_in_one_call(net, inputs, labels, flags.batch, name == BY_XLA) for name, net in looped.items()}
    check(recipe, fits, looped, epochs, inputs, labels)
    ways = {words(steps): partial(net.fit, inputs, labels, flags.batch, verbose=0) for steps, net in fits.items()}
    ways[ONCE] = partial(fits[1].fit, inputs[: flags.batch], labels[: flags.batch], verbose=0)
    for name, epoch in epochs.items():
        ways[name] = lambda epoch=epoch: epoch(tf.random.shuffle(tf.range(len(inputs))))
    comparison = recipe.compare(ways, tolerance=None, what=f"an epoch of {EPOCH} steps")
    recipe.plot(draw, *explain(recipe, comparison))


def build(seed: int, steps: int) -> keras.Model:
    """Build the perceptron of 512, 256, 128 and 2 units, with the same weights each time."""
    net = get_net("mlp", seed=seed)
    many_steps_a_call(net, steps)
    return net


def words(steps: int) -> str:
    """Name a candidate."""
    return f"fit, {steps} step{'s' * (steps > 1)} a call"


def check(recipe: Recipe, fits: dict, looped: dict, epochs: dict, inputs, labels) -> None:
    """Train eleven batches in each way and compare the weights; see when a callback stops training."""
    few, stopped, tolerance = 11 * recipe.flags.batch, {}, 2e-2  # Adam makes whole steps of gradients of rounding
    for net in fits.values():
        net.fit(inputs[:few], labels[:few], recipe.flags.batch, shuffle=False, verbose=0)
    for epoch in epochs.values():
        epoch(tf.range(few))
    for name, net in ({words(steps): net for steps, net in fits.items() if steps > 1} | looped).items():
        recipe.agrees(f"{name}: weights after 11 steps", net.get_weights(), fits[1].get_weights(), tolerance)
    for steps, net in fits.items():
        net.fit(inputs, labels, recipe.flags.batch, verbose=0, callbacks=[StopBelow(math.inf)])
        stopped[steps] = int(net.optimizer.iterations) - 11
        recipe.fact(f"steps until training stops that should stop after one: {words(steps)}", stopped[steps])
    asked, after = (", ".join(map(str, numbers)) for numbers in (stopped, stopped.values()))
    recipe.finds(f"A callback that would stop after one step stops after {after}, with {asked} steps a call.")


def explain(recipe: Recipe, comparison: Comparison) -> tuple:
    """Fit the time of a step by a + b / k; gives k -> seconds, a, b, and the seconds of a step of each loop."""
    once = comparison[ONCE].median
    seconds = {steps: (comparison[words(steps)].median - once) / (EPOCH - 1) for steps in CALLS}
    share, left = np.polyfit([1 / steps for steps in CALLS], list(seconds.values()), 1)
    share, loops = max(0.0, share), {name: comparison[name].median / EPOCH for name in (LOOP, BY_XLA)}
    rows = [(words(k), f"{value * 1e6:.0f}", f"{(left + share / k) * 1e6:.0f}") for k, value in seconds.items()]
    recipe.table(("us a step", "measured", "a + b/k"), rows + [(way, f"{loops[way] * 1e6:.0f}", "") for way in loops])
    for name, value in {"step that stay": left, "call": share, ONCE: once, **loops}.items():
        recipe.fact(f"seconds of {name}, a step" if name in loops else f"seconds of a {name}", float(value))
    enough = max(1, math.ceil(share / (ENOUGH * left)))
    recipe.finds(f"fit takes {once * 1e3:.0f} ms for what it does once, and {seconds[1] * 1e6:.0f} us a step.")
    recipe.finds(f"A call costs {share * 1e6:.0f} us, which k steps share; {left * 1e6:.0f} us of a step stay.")
    recipe.finds(f"With k = {enough} the calls are {ENOUGH:.0%} of what the steps take: there the gain ends.")
    for what, before, after in (
        ("An epoch with 64 steps a call is {:.2f} times as fast as with one", words(1), words(64)),
        ("Without fit and its iterator it is {:.2f} times as fast again", words(64), LOOP),
        ("By XLA, where nobody starts operation after operation, it is {:.2f} times as fast again", LOOP, BY_XLA),
    ):
        ratio = comparison.ratio(before, after)
        recipe.finds(f"{what.format(ratio.estimate)}: {ratio.verdict}.")
    recipe.corrects("on a CPU nothing hides the overhead: a call returns when its steps are done; then Python runs.")
    return seconds, left, share, loops


def draw(figure, seconds: dict, left: float, share: float, loops: dict) -> None:
    """Draw the time of a step by the steps of a call, the line that fits it, and the loops."""
    axes, calls = figure.subplots(), np.geomspace(1, max(seconds))
    axes.semilogx(list(seconds), [value * 1e6 for value in seconds.values()], "o", base=2, label="measured")
    axes.semilogx(calls, (left + share / calls) * 1e6, "--", base=2, label="a + b/k")
    for (name, loop), colour in zip(loops.items(), ("tab:green", "tab:red"), strict=True):
        axes.axhline(loop * 1e6, color=colour, label=name)
    axes.set(xlabel="k, steps a call", ylabel="us a step", title="fit of get_net('mlp')", ylim=(0, None))
    axes.set_xticks(list(seconds), map(str, seconds))
    axes.legend()


if __name__ == "__main__":
    Recipe(__file__, batch=32).run(main)
