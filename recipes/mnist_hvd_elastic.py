"""A worker dies. And now?

Source: none
Claim: no source document mentions elastic training; Horovod's documentation says that it goes on when workers die,
    and takes up new ones.
Expect: two workers train; one is killed, the other goes on alone, a third joins. A ledger with each batch once; the
    weights of one process that trained over the same batches; the seconds that the death and the joining cost; and
    what a commit costs, to choose how often. The three hosts are names of this machine.
Holds not: for a rank 0 that dies with the launcher's host: who launches must stay.
Needs: TensorFlow; Horovod (tfperf horovod install); real images (tfperf data fashion_mnist).
Time: about 1 minute on 2 cores; with --quick about 40 s.
Shows: work
Try: --epochs 4: twice the batches, and the same seconds for the death and the joining.
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow warns of float64 once for each function

import keras
import numpy as np
import tensorflow as tf

import tfperf.parallel.horovod as hvd
from tfperf import Flag, Recipe, TfperfError, check_agreement, compare, load
from tfperf.data import NAMES
from tfperf.measure.words import format_seconds

BATCHES_PER_COMMIT = 10
HOSTS = ("localhost", "127.0.0.1", "127.1")  # three names of this machine, three hosts to Horovod
DEATH = 47  # the batch at which the worker on the second host is killed
INVITATION = 60  # the batch at which the third host is added
TOGETHER = 100  # batches to train at least once the third worker has joined
RATE = 0.02  # of SGD with momentum. All workers together take one batch, so the rate is the same for any number
TOLERANCE = 1e-9  # relative, of the weights: workers add up in another order, and all is computed in float64.
# In float32 a net like this was 0.1 away from itself after 400 batches, as far as with some batches counted twice.
NOTES = "MNIST_HVD_ELASTIC_NOTES"  # variable with the folder in which workers of this lesson note what they do
DEADLINE = 240  # seconds for all that the workers do
QUICK_IMAGES = (9600, 1000)  # train, test


def work(recipe: Recipe, data) -> None:
    """What each worker does: train on its part of each batch, and go on when others die or join."""
    hvd.init()
    net, step = build(recipe, data, hvd.DistributedOptimizer(keras.optimizers.SGD(RATE, momentum=0.9)))
    examples = shuffle(recipe, data)
    lesson = Lesson(os.environ.get(NOTES))
    batches = recipe.flags.epochs * len(data.train_images) // recipe.flags.batch

    @hvd.elastic.run
    def train(state) -> None:
        """Called anew whenever workers have died or joined; where to go on is in the state."""
        last = lesson.last_batch(state.batch, batches)
        while state.batch < last:
            lesson.play(state.batch)
            mine = examples(state.batch)[hvd.rank() :: hvd.size()]
            step(data.train_images[mine], data.train_labels[mine])
            lesson.note(batch=state.batch, workers=hvd.size())
            state.ledger.append((state.batch, hvd.size()))
            state.batch += 1
            if state.batch % BATCHES_PER_COMMIT == 0:
                state.commit()  # what comes after it is lost when a worker dies, and done again
                lesson.note(committed=state.batch)

    state = hvd.elastic.KerasState(net, batch=0, ledger=[])
    train(state)
    if hvd.rank() == 0:  # perhaps another one than at the start
        print(f"{len(state.ledger)} batches counted, by workers: {dict(Counter(n for _, n in state.ledger))}")
        lesson.finish(state.ledger, net.get_weights())


def main(recipe: Recipe) -> None:
    """Be one of the workers; or start them, and recount."""
    keras.config.set_floatx("float64")
    data = load(recipe.flags.data)
    if recipe.flags.quick:
        data = data.take(min(QUICK_IMAGES[0], len(data.train_images)), min(QUICK_IMAGES[1], len(data.test_images)))
    if recipe.flags.batch % 6:
        raise TfperfError(
            "expected --batch to be a multiple of 6, to be shared by 1, 2 or 3 workers. "
            f"Received: --batch {recipe.flags.batch}"
        )
    recipe.uses(data)
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        work(recipe, data)
        return
    events, ledger, weights = run_workers(recipe)
    check_count(recipe, data, ledger, weights, computed_twice(events))
    tell_costs(recipe, events)
    choose_commits(recipe, data)
    recipe.plot(lambda figure: draw(figure, events))


class Lesson:
    """What a worker does for this lesson beside training, if it is given a folder: it takes notes, and plays fate."""

    def __init__(self, folder: str | None) -> None:
        """Open this worker's own file of notes."""
        self.host = os.environ["HOROVOD_HOSTNAME"]
        self.folder = Path(folder) if folder else None
        self.notes = (self.folder / f"{self.host}.notes").open("a") if self.folder else None

    def note(self, **what) -> None:
        """Write down what was done and when, so that it outlives the worker."""
        if self.notes:
            print(json.dumps({"host": self.host, "time": time.monotonic()} | what), file=self.notes, flush=True)

    def play(self, batch: int) -> None:
        """Kill the worker on the second host; later add the third to those that the launcher finds."""
        if self.folder and batch == DEATH and self.host == HOSTS[1]:
            self.note(dies=batch)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.folder and batch == INVITATION and hvd.size() == 1:
            with (self.folder / "hosts").open("a") as file:
                file.write(f"{HOSTS[2]}:1\n")

    def last_batch(self, batch: int, batches: int) -> float:
        """Where to end: not alone, as a net as small as this is trained before another process has started."""
        if self.folder is None:
            return batches
        return math.inf if hvd.size() == 1 else max(batches, batch + TOGETHER)

    def finish(self, ledger: list, weights: list) -> None:
        """Write down what training came to."""
        if self.folder:
            (self.folder / "ledger.json").write_text(json.dumps(ledger))
            np.savez(self.folder / "weights.npz", *weights)


def build(recipe: Recipe, data, optimizer) -> tuple:
    """A perceptron with this seed's first weights, compiled, and its training step."""
    keras.utils.set_random_seed(recipe.flags.seed)
    layers = [keras.layers.Flatten(), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(data.num_classes)]
    net = keras.Sequential([keras.Input(data.input_shape), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer, loss, metrics=["accuracy"])
    optimizer.build(net.trainable_variables)

    @tf.function(reduce_retracing=True)  # a worker's part of the batch changes with the number of workers
    def step(images, labels):  # uint8 (part, height, width, channels), int64 (part,)
        with tf.GradientTape() as tape:
            value = loss(labels, net(tf.cast(images, tf.float64) / 255, training=True))
        optimizer.apply(tape.gradient(value, net.trainable_variables), net.trainable_variables)
        return value

    return net, step


def shuffle(recipe: Recipe, data):
    """From the number of a batch to its examples, (batch,), the same on all workers however many there are."""
    order = np.random.default_rng(recipe.flags.seed).permutation(len(data.train_images))
    size = recipe.flags.batch
    return lambda batch: np.take(order, np.arange(batch * size, (batch + 1) * size), mode="wrap")


def run_workers(recipe: Recipe) -> tuple[list[dict], list, list]:
    """Start two workers under a launcher that asks a script for hosts; their notes by time, the ledger, the weights."""
    recipe.console.print(
        f"Two workers train. At batch {DEATH} the one on host {HOSTS[1]} is killed; "
        f"at batch {INVITATION} a host {HOSTS[2]} is added, whose worker joins."
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "hosts").write_text(f"{HOSTS[0]}:1\n{HOSTS[1]}:1\n")
        script = folder / "discover.sh"
        script.write_text(f"#!/bin/sh\nexec cat '{folder}/hosts'\n")  # on a cluster, this asks who is there
        script.chmod(0o700)
        command = [sys.executable, "-m", "tfperf", "launch", "-np", "2", "--min-np", "1", "--max-np", "2"]
        command += ["--host-discovery-script", str(script), sys.executable, __file__]
        command += [*sys.argv[1:], "--json", str(folder / "worker.json")]
        with (folder / "output").open("w+") as output:
            # TMPDIR: what killed workers leave behind goes with the folder
            code = run_to_end(command, os.environ | {NOTES: scratch, "TMPDIR": scratch}, output)
            if code != 0:
                output.seek(0)
                raise TfperfError(f"the workers failed, {code}: {' | '.join(output.read().splitlines()[-3:])}")
        events = [json.loads(line) for file in folder.glob("*.notes") for line in file.read_text().splitlines()]
        ledger = json.loads((folder / "ledger.json").read_text())
        with np.load(folder / "weights.npz") as arrays:
            return sorted(events, key=lambda event: event["time"]), ledger, list(arrays.values())


def run_to_end(command: list[str], environment: dict[str, str], output) -> int | str:
    """Run a launcher; its exit code. Its workers end with it, and it ends with this function, whatever happens."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        return process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        return f"not ended after {DEADLINE} s"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def computed_twice(events: list[dict]) -> list[int]:
    """The batches that a worker computed twice: those after the last commit before the death."""
    times = Counter((event["host"], event["batch"]) for event in events if "batch" in event)
    return sorted({batch for (_, batch), count in times.items() if count > 1})


def check_count(recipe: Recipe, data, ledger: list, weights: list, lost: list[int]) -> None:
    """No batch counted twice, and none left out: the ledger says so, and the weights prove it."""
    batches = [batch for batch, _ in ledger]
    alone, doubled = train_alone(recipe, data, batches), train_alone(recipe, data, sorted([*batches, *lost]))
    recipe.console.print("\nDid each batch count once?")
    recipe.agrees("ledger, against each batch once", np.array(batches), np.arange(len(batches)), 0.0)
    same = check_agreement("weights, against one process", weights, alone.get_weights(), TOLERANCE)
    recipe.add(same)
    wrong = check_agreement("if lost batches counted twice", doubled.get_weights(), alone.get_weights(), TOLERANCE)
    recipe.console.print(f"  if the lost batches had counted twice: relative error {wrong.relative_error:.2g}")
    recipe.fact("batches", len(batches))
    recipe.fact("batches computed twice, counted once", len(lost))
    recipe.fact("relative error of the weights if those batches had counted twice", wrong.relative_error)

    images, labels = data.test_images / 255, data.test_labels
    one_process = alone.evaluate(images, labels, batch_size=1000, verbose=0)[1]
    alone.set_weights(weights)
    elastic = alone.evaluate(images, labels, batch_size=1000, verbose=0)[1]
    recipe.fact("test accuracy: elastic", elastic)
    recipe.fact("test accuracy: one process", one_process)
    recipe.finds(
        f"Training went on. Batches {lost[0]} to {lost[-1]} were computed twice, and count once: the weights are those "
        f"of one process to {same.relative_error:.1g}. Counted twice, they would differ by {wrong.relative_error:.2g}."
    )
    recipe.finds(f"Test accuracy: {elastic:.1%}; of one process {one_process:.1%}.")


def train_alone(recipe: Recipe, data, batches: list[int]) -> keras.Model:
    """The same net in one process, without Horovod, trained over these batches."""
    net, step = build(recipe, data, keras.optimizers.SGD(RATE, momentum=0.9))
    examples = shuffle(recipe, data)
    for batch in batches:
        step(data.train_images[examples(batch)], data.train_labels[examples(batch)])
    return net


def tell_costs(recipe: Recipe, events: list[dict]) -> None:
    """The seconds without progress: after the death, and while the third worker joined."""
    death, restart, commit, before, joined = moments(events)
    recipe.fact("seconds from the death to the next batch", restart - death)
    recipe.fact("seconds from the death to the next commit", commit - death)
    recipe.fact("seconds without a batch while the third worker joined", joined - before)
    recipe.finds(
        f"The death cost {format_seconds(commit - death)}: {format_seconds(restart - death)} until the worker that "
        "was left trained again, the rest to do the lost batches anew and reach the next commit."
    )
    recipe.finds(
        f"The joining cost {format_seconds(joined - before)}: those that train wait while the new process starts "
        "Python, TensorFlow and Horovod. It pays where much is left to train."
    )


def moments(events: list[dict]) -> tuple[float, ...]:
    """When the worker died, the next batch, the next commit, the last batch alone, the first with the third worker."""
    death = next(e["time"] for e in events if "dies" in e)
    restart = next(e["time"] for e in events if e["time"] > death and e.get("workers") == 1)
    commit = next(e["time"] for e in events if e["time"] > death and "committed" in e)
    before = max(e["time"] for e in events if e.get("workers") == 1)
    joined = next(e["time"] for e in events if e["time"] > before and e.get("workers") == 2)
    return death, restart, commit, before, joined


def choose_commits(recipe: Recipe, data) -> None:
    """What a commit costs beside a step decides how often to commit."""
    hvd.init()  # without a launcher this is the only worker
    net, step = build(recipe, data, hvd.DistributedOptimizer(keras.optimizers.SGD(RATE, momentum=0.9)))
    state = hvd.elastic.KerasState(net, batch=0, ledger=[])
    first = shuffle(recipe, data)(0)
    images, labels = tf.constant(data.train_images[first]), tf.constant(data.train_labels[first])
    candidates = {"training step": lambda: step(images, labels), "state.commit()": state.commit}
    with recipe.progress("a commit beside a step") as show:
        comparison = compare(candidates, time_limit=recipe.flags.time_limit, seed=recipe.flags.seed, on_progress=show)
    recipe.add(comparison)
    one_step, commit = (measurement.median for measurement in comparison.measurements)
    share = commit / one_step
    best = math.sqrt(2 * commit * 3600)  # seconds between commits: Young's approximation (1974) of the optimum
    recipe.fact("commit by step", share)
    recipe.finds(
        f"A commit costs {share:.2f} steps: one in {BATCHES_PER_COMMIT} batches slows training by "
        f"{share / BATCHES_PER_COMMIT:.1%}, and a death loses {BATCHES_PER_COMMIT - 1} whole batches at most. "
        f"With one death an hour, a commit every {best:.1f} s, or {best / one_step:,.0f} of these batches, loses least."
    )


def draw(figure, events: list[dict]) -> None:
    """Draw the batches around the death, and the number of workers over the whole training."""
    near, whole = figure.subplots(1, 2)
    death, restart, commit, before, joined = moments(events)
    lost, done = computed_twice(events), [event for event in events if "batch" in event]
    for host, marker, size in ((HOSTS[0], "o", 8), (HOSTS[1], "x", 5)):
        for word, colour in (("counted", "#2a6f97"), ("lost", "#d1495b")):
            points = [
                (1e3 * (e["time"] - death), e["batch"]) for e in done
                if e["host"] == host and (e["batch"] in lost and e["time"] < restart) == (word == "lost")
            ]  # fmt: skip
            near.plot(*zip(*points, strict=True), marker, color=colour, ms=size, mfc="none", label=f"{host}, {word}")
    near.axvline(0, color="black", lw=1)
    near.set_xlim(-500 * (commit - death), 1200 * (commit - death))
    near.set_ylim(lost[0] - 10, DEATH + 10)
    near.set(xlabel="ms after the kill", ylabel="batch", title=f"At batch {DEATH} the worker on {HOSTS[1]} is killed")
    near.legend(fontsize="small", loc="lower right")

    start = done[0]["time"]
    whole.plot([e["time"] - start for e in done], [e["workers"] for e in done], ".", color="#2a6f97")
    whole.axvline(death - start, color="black", lw=1)
    whole.annotate(" the kill", (death - start, 0.1))
    whole.axvspan(before - start, joined - start, color="#d1495b", alpha=0.2, lw=0)
    whole.annotate(f"the worker\non {HOSTS[2]}\njoins", ((before + joined) / 2 - start, 1.3), ha="center")
    whole.set(xlabel="seconds", ylabel="workers", yticks=[0, 1, 2], ylim=(0, 2.3), title="Each batch, counted or lost")
    for axes in (near, whole):
        axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    data_flag = Flag("fashion_mnist", "mnist, fashion_mnist or digits", choices=NAMES)
    Recipe(__file__, batch=96, epochs=Flag(2, "epochs to train"), data=data_flag).run(main)
