"""Does `fit` with what `tfperf.training` does to it train faster than its peers, and than Keras's `fit`?

    make peers                                          # once: installs PyTorch in .venv-peers
    python benchmarks/training.py                       # about two hours; leave the machine alone meanwhile
    python benchmarks/training.py --net resnet18 --batch-size 64 --json figures.json

One net after the other, an epoch over the same examples, batch size and weights at the start, Adam, in turns: Keras's
`fit` in float32 and in mixed_bfloat16, both with `tfperf.training`, and its peers: PyTorch, eager and by
`torch.compile`, in float32 and with bfloat16 by autocast, with the channels last and its fused Adam; Keras on JAX and
on PyTorch, in float32 and mixed_bfloat16. Nobody computes in bfloat16 where the processor has no instructions for it.
Each is a process of its own with the number of threads that it takes by itself, and stands still while another has its
turn. The loss of everyone's first epochs is compared with that of Keras in float32 before anything is timed. Beside
the figures stands the limit on paper: the arithmetic of a step over the fastest product of matrices on this machine.
Convolutions by Winograd's method may pass it, as they multiply less often.

Exit code 0: everywhere the faster of tfperf is as much faster as `TASKS` wants. 1: it is not, or a peer did not run or
did not learn. 2: the peers are not installed.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != HERE]
sys.path.append(str(HERE.parent))  # else the names of files here would hide libraries; the package is benchmarks.peers

import numpy as np
import typer
from rich.console import Console

from benchmarks.peers.catalog import Peer, why_not_set_up
from benchmarks.peers.process import PeerProcess, PeerWork
from tfperf.data import load
from tfperf.errors import BAD_INPUT, EngineError
from tfperf.hardware.counting import graph_work
from tfperf.hardware.machine import ceilings_of_this_machine
from tfperf.importing import load_tensorflow
from tfperf.measure import Comparison, Environment, compare
from tfperf.measure.results import Result, write_result
from tfperf.measure.words import format_ratio, format_seconds
from tfperf.report.tables import bare_table
from tfperf.trials.side_by_side import InTurns, Turns

DEFAULT = "Keras fit"
OURS = (
    Peer("tfperf", "keras_training", "tfperf"),
    Peer("tfperf, mixed_bfloat16", "keras_training", "tfperf", "bfloat16"),
    Peer("tfperf, XLA", "keras_training", "tfperf, XLA"),
    Peer("tfperf, loop by XLA", "keras_training", "tfperf, loop by XLA"),
    Peer("tfperf, loop by XLA, mixed_bfloat16", "keras_training", "tfperf, loop by XLA", "bfloat16"),
)
OF_CONVOLUTIONS = ("resnet18", "mobilenetv2_96", "efficientnetb0_96")
"""Nets for which XLA takes so many times as long that it is not tried."""
KERAS = (
    Peer(DEFAULT, "keras_training", "fit"),
    Peer("Keras fit, mixed_bfloat16", "keras_training", "fit", "bfloat16"),
)
ELSEWHERE = tuple(
    Peer(f"Keras on {name}{words}", "keras_training", "fit", precision, backend)
    for backend, name in (("jax", "JAX"), ("torch", "PyTorch"))
    for precision, words in (("float32", ""), ("bfloat16", ", mixed_bfloat16"))
)
PYTORCH = (
    Peer("PyTorch eager", "torch_training", "eager"),
    Peer("PyTorch eager, bfloat16", "torch_training", "eager", "bfloat16"),
    Peer("torch.compile", "torch_training", "compile"),
    Peer("torch.compile, bfloat16", "torch_training", "compile", "bfloat16"),
)


class Task(NamedTuple):
    """What is trained, and how much faster than others tfperf is to be."""

    net: str
    batch_size: int
    examples: int
    """An epoch has so many."""
    beside_best: float
    """Times as fast as the fastest of the peers: PyTorch, and Keras on JAX and on PyTorch."""
    beside_default: float
    """Times as fast as Keras's `fit` in float32."""
    epochs_checked: int = 2
    """So many epochs are trained before anything is timed; the least loss of each shows who learns."""
    most_loss: float = 1.25
    """Times the least loss of Keras's `fit` in these epochs, beyond which somebody learns less."""

    @property
    def ours(self) -> tuple[Peer, ...]:
        """The ways of tfperf that are tried."""
        return tuple(peer for peer in OURS if self.net not in OF_CONVOLUTIONS or "XLA" not in peer.way)

    def __str__(self) -> str:
        return f"{self.net}, batch {self.batch_size}"


TASKS = (
    # The first epochs of few steps are a matter of luck: more are checked; with dropout of whole branches most of all
    Task("resnet18", 64, 512, 1.12, 1.8, most_loss=1.5),
    Task("resnet18", 256, 512, 1.12, 1.8, epochs_checked=4),
    *(Task(net, size, 5_000, 1.2, 3.0) for net in ("mnist_cnn", "lenet") for size in (32, 256)),
    *(Task("mlp", size, 20_000, 1.2, 3.0) for size in (32, 256)),
    Task("transformer", 32, 512, 1.0, 1.0),
    Task("lstm", 32, 512, 1.0, 1.0),
    Task("mobilenetv2_96", 32, 256, 1.0, 1.0, epochs_checked=4),
    Task("efficientnetb0_96", 32, 256, 1.0, 1.0, epochs_checked=8, most_loss=2.0),
)

RATE = 1e-3
HOPELESS = 4.0
"""Times the fastest epoch, from which on only the fastest peer and `DEFAULT` take turns: others' time would be most."""

ROUNDS = 8
"""The fewest from which a ratio has a 99 % interval: epochs are short enough for so many in `SECONDS`."""

SECONDS = 300.0
"""What measuring a task takes."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main(
    net: Annotated[list[str] | None, typer.Option(help="Only this one; may be given several times.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Only this one.")] = None,
    seconds: Annotated[float, typer.Option(help="Of measuring, for each task.")] = SECONDS,
    pytorch_alone: Annotated[
        bool,
        typer.Option("--pytorch-alone", help="Without Keras on JAX and on PyTorch, whose epochs may take minutes."),
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures here too.")] = None,
) -> None:
    """Train side by side."""
    tasks = [one for one in TASKS if (not net or one.net in net) and batch_size in (None, one.batch_size)]
    if not tasks:
        raise typer.BadParameter(f"expected one of {', '.join(map(str, TASKS))}")
    if why := why_not_set_up():
        print(why, file=sys.stderr)
        raise typer.Exit(BAD_INPUT)
    load_tensorflow()
    comparisons: list[Comparison] = []
    meaning: list[str] = []
    held = True
    for task in tasks:
        with contextlib.ExitStack() as stack:
            works, failed = prepared(task, stack, () if pytorch_alone else ELSEWHERE)
            comparison = compare(works, time_limit=seconds, min_rounds=ROUNDS, turn_seconds=0.5)
        comparisons.append(comparison)
        for words, good in said(task, comparison, failed):
            meaning.append(words)
            held &= good
            console.print(words, markup=False)
    if json_path:
        write_result(json_path, Result(name="training", comparisons=tuple(comparisons), meaning=tuple(meaning)))
    raise typer.Exit(0 if held else 1)


def prepared(
    task: Task, stack: contextlib.ExitStack, elsewhere: tuple[Peer, ...]
) -> tuple[dict[str, InTurns], dict[str, str]]:
    """Start everyone, and check that they learn; who did not is told why."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    write_examples(task, folder)
    turns, failed = Turns(), dict[str, str]()
    loss, started = None, dict[str, tuple[float, PeerProcess]]()
    peers = [peer for peer in (*KERAS, *task.ours, *PYTORCH, *elsewhere) if is_computed(peer.precision)]
    if not is_computed("bfloat16"):
        console.print(f"{task}: nobody in bfloat16, in which this processor does not compute", style="dim")
    for peer in peers:
        try:
            process = stack.enter_context(PeerProcess(peer))
            words = process.load(task.net, folder)
            losses = process.answers().ravel()
            loss = losses.min() if loss is None else loss  # Keras's fit is the first
            seconds = PeerWork(process).timed(1)
            words = f"{words}; losses {losses.round(3)}; an epoch took {format_seconds(seconds)}"
            console.print(f"{task}: {peer.name}: {words}", markup=False, style="dim")
            if not losses.min() < task.most_loss * loss:
                raise EngineError(f"its loss is {losses.min():.3g}, where that of {DEFAULT} is {loss:.3g}")
        except EngineError as error:
            failed[peer.name] = str(error)
            continue
        process.rest()
        stack.callback(process.wake)
        started[peer.name] = seconds, process
    fastest = min((seconds for seconds, _ in started.values()), default=0.0)
    rivals = {peer.name: started[peer.name][0] for peer in (*PYTORCH, *elsewhere) if peer.name in started}
    compared = (DEFAULT, min(rivals, key=rivals.__getitem__, default=""))
    works = {}
    for name, (seconds, process) in started.items():
        if seconds > HOPELESS * fastest and name not in compared:
            console.print(f"{task}: {name} takes no turns: {seconds / fastest:.1f} times the fastest", markup=False)
        else:
            works[name] = InTurns(PeerWork(process), turns, process.rest, process.wake)
    return works, failed


def input_type(net: Any) -> str:
    """The type of a net's one input."""
    return str(net.inputs[0].dtype)


def on_paper(task: Task, speed: float) -> str:
    """What arithmetic alone would take on this machine, beside what was reached."""
    import keras
    import tensorflow as tf

    from benchmarks.peers import nets

    net = nets.lstm(unroll=True) if task.net == "lstm" else nets.fresh(task.net)  # of a loop one step would be counted
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def gradients(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(labels, net(inputs, training=True))
        return tape.gradient(value, net.trainable_variables)

    given = tf.TensorSpec((task.batch_size, *net.input_shape[1:]), net.inputs[0].dtype)
    traced = tf.function(gradients).get_concrete_function(given, tf.TensorSpec([task.batch_size], tf.int64))
    flops = sum(work.flops for work in graph_work(traced))
    ceilings = ceilings_of_this_machine(quick=True)
    threads = max(ceilings.threads)
    limits = []
    for dtype in (one for one in ("float32", "bfloat16") if is_computed(one)):
        limit = task.batch_size * ceilings.peak(dtype, threads) / flops
        limits.append(f"{limit:.0f} examples/s in {dtype} ({speed / limit:.0%} of it reached)")
    return f"on paper, {flops / 1e9:.3g} GFLOP a step at this machine's fastest product: {', '.join(limits)}"


def is_computed(precision: str) -> bool:
    """Whether the processor computes in a type; where it does not, a step in bfloat16 takes minutes."""
    return precision == "float32" or bool(Environment.here().instructions_for(precision))


def write_examples(task: Task, folder: Path) -> None:
    """Write what all train on: weights at the start, examples, and an empty row for each epoch that is checked."""
    from benchmarks.peers import nets

    net = nets.build(task.net)
    np.savez(folder / "weights.npz", **nets.weights_of(net))
    if net.input_shape[1:] == (28, 28, 1):
        data = load("fashion_mnist").take(task.examples, 1)
        inputs, labels = data.train_images.astype("float32") / 255, data.train_labels
    elif net.input_shape[-1] == 3:  # noise whose brightness is the class
        generator = np.random.default_rng(0)
        labels = generator.integers(0, 10, task.examples)
        inputs = generator.uniform(0, 30, (task.examples, *net.input_shape[1:])).astype("float32")
        inputs += 25 * labels[:, None, None, None].astype("float32")
    elif input_type(net) == "int32":  # token ids; the label is the class of the largest one in the first quarter
        generator = np.random.default_rng(0)
        inputs = generator.integers(0, 256, (task.examples, *net.input_shape[1:]), np.int32)
        labels = (inputs[:, : inputs.shape[1] // 4].max(axis=1).astype("int64") * 10) // 256
    else:
        generator = np.random.default_rng(0)
        inputs = generator.standard_normal((task.examples, *net.input_shape[1:]), np.float32)
        labels = (inputs[:, :8].sum(axis=1) > 0).astype("int64")
    np.savez(folder / "examples.npz", inputs=inputs, labels=labels, batch_size=task.batch_size, rate=RATE)
    np.savez(folder / "inputs.npz", **{"0": np.zeros([task.epochs_checked, 1])})


def said(task: Task, comparison: Comparison, failed: dict[str, str]) -> list[tuple[str, bool]]:
    """A table of all, and what is wanted beside what was found."""
    table = bare_table("", "examples/s", "tfperf is [99 %]")
    speeds = {one.name: task.examples / one.median for one in comparison.measurements}
    best = {
        kind: max((one.name for one in peers if one.name in speeds), key=speeds.__getitem__, default=None)
        for kind, peers in (("ours", task.ours), ("peers", (*PYTORCH, *ELSEWHERE)), ("default", KERAS[:1]))
    }
    if best["ours"] is None or best["default"] is None or best["peers"] is None:
        return [(f"{task}: did not run: {failed}", False)]
    for name in sorted(speeds, key=speeds.__getitem__, reverse=True):
        beside = "" if name == best["ours"] else format_ratio(comparison.ratio(name, best["ours"]).interval)
        table.add_row(name, f"{speeds[name]:.0f}", beside)
    console.print(f"\n{task}", markup=False, style="bold")
    console.print(table)
    console.print(on_paper(task, speeds[best["ours"]]), markup=False)
    found = []
    for rival, wanted in ((best["peers"], task.beside_best), (best["default"], task.beside_default)):
        ratio = comparison.ratio(rival, best["ours"])
        holds = ratio.estimate >= wanted
        words = f"{task}: {best['ours']} beside {rival}: {format_ratio(ratio.interval)} in {comparison.rounds} rounds, "
        words += f"{wanted:g}x wanted: "
        found.append((words + ("holds" if holds else "DOES NOT HOLD"), holds))
    return [*found, *((f"{task}: {name} did not run: {why}", False) for name, why in failed.items())]


if __name__ == "__main__":
    typer.run(main)
