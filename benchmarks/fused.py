"""Do models of Keras train the same after `fuse` and `fast_optimizer`?

    python benchmarks/fused.py
    python benchmarks/fused.py --net ResNet50

Five models of `keras.applications`, 64x64 images, random weights, with moving statistics that fit them. Every layer
that has a faster form gets it, whether it is faster here or not. Then its outputs are compared with Keras's, and 20
steps of Adam with those of Keras by three seeds: `tfperf.trials.training.courses` says by which rule.

Exit code 0: all outputs are within 1e-4 of the largest, and every course is one that Keras could have taken. 1: not so.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != HERE]  # its files would hide libraries
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import typer

from tfperf.training import fuse
from tfperf.training.plan import CHANGES, TrainingChange, TrainingPlan
from tfperf.trials.training.courses import Course, why_not_followed
from tfperf.trials.training.worker import TrainingWorker

NETS = ("ResNet50", "MobileNetV2", "EfficientNetB0", "ConvNeXtTiny", "DenseNet121")
BATCH_SIZE, SEGMENTS, STEPS, SEEDS, CLASSES = 8, 5, 4, 3, 10
CALIBRATING_CALLS = 6
TOLERANCE = 1e-4
PLAIN = TrainingPlan(batch_size=BATCH_SIZE)


def data() -> tuple[Any, Any]:
    """Images whose class is seen in their brightness, (examples, 64, 64, 3) and labels."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, 256)
    images = generator.uniform(0, 255, (256, 64, 64, 3)).astype("float32")
    return (images + 25.0 * labels[:, None, None, None]) / 2, labels


def built(name: str) -> keras.Model:
    """A net with fresh weights, and moving statistics of what its layers really give."""
    net = getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3), classes=CLASSES)
    images, _ = data()
    norms = [layer for layer in net._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    for _ in range(CALIBRATING_CALLS if norms else 0):  # each normalization needs those before it
        net(images[:32], training=True)
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum
    net.compile(keras.optimizers.Adam(1e-4), keras.losses.SparseCategoricalCrossentropy())
    return net


def resnet50() -> keras.Model:
    return built("ResNet50")


def mobilenetv2() -> keras.Model:
    return built("MobileNetV2")


def efficientnetb0() -> keras.Model:
    return built("EfficientNetB0")


def convnexttiny() -> keras.Model:
    return built("ConvNeXtTiny")


def densenet121() -> keras.Model:
    return built("DenseNet121")


def largest_error(name: str) -> float:
    """The largest difference of outputs after `fuse`, as a share of the largest output."""
    net, (images, _) = built(name), data()
    before = np.asarray(net(images[:16], training=False))
    fuse(net, images[:BATCH_SIZE], measure=False)
    after = np.asarray(net(images[:16], training=False))
    return float(np.abs(after - before).max() / np.abs(before).max())


def courses(name: str, plan: TrainingPlan, seeds: int) -> list[Course]:
    """The courses of a plan with seeds 0, 1, ..."""
    worker = TrainingWorker()
    here = str(HERE / "fused.py")
    worker.open(plan.model_dump_json(), f"{here}:{name.lower()}", f"{here}:data")
    told = [worker.course(seed, SEGMENTS, STEPS) for seed in reversed(range(seeds))]
    return [Course.model_validate_json(json.dumps(one)) for one in reversed(told)]


def main(net: Annotated[list[str] | None, typer.Option(help="Only this one.")] = None) -> None:
    """Compare each net with itself."""
    CHANGES["fuse_all"] = TrainingChange("all layers fused", lambda model, inputs: fuse(model, inputs, measure=False))
    fused = TrainingPlan(changes=("fast_optimizer", "fuse_all"), batch_size=BATCH_SIZE)
    held = True
    for name in net or NETS:
        error = largest_error(name)
        references = courses(name, PLAIN, SEEDS)
        course = courses(name, fused, 1)[0]
        why = why_not_followed(course, references)
        far = max(abs(a - b) for a, b in zip(course.losses, references[0].losses, strict=True))
        print(f"{name}: outputs differ by {error:.1e}", flush=True)
        steps = f"{SEGMENTS * STEPS} steps: losses differ by at most {far:.2g}"
        print(f"{name}: {steps}, {why or 'as Keras could have them'}", flush=True)
        held &= error <= TOLERANCE and why is None
    raise typer.Exit(0 if held else 1)


if __name__ == "__main__":
    typer.run(main)
