"""The process that measures ceilings with one number of threads: `python -m tfperf.hardware.ceilings.worker`.

Its argument is an Order, as JSON.
On standard output it writes lines of JSON: {"doing": words} as it goes on, {"ready": true} when it waits for a line on
standard input to begin, so that nobody else measures meanwhile, and at last {"part": a Part}.
"""

import ctypes
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

from tfperf.errors import shortened
from tfperf.hardware.ceilings import Bandwidth, CallCost, ProductRate, Refusal
from tfperf.hardware.ceilings.figures import Order, Part
from tfperf.hardware.repeating import Sample, TimedTask, in_turns, on_change
from tfperf.importing import KERAS_CAN_DO_WITHOUT, absent
from tfperf.measure import Environment
from tfperf.measure.clock import device_synchronizer

__all__ = ["main", "measure_part"]

SECONDS, QUICK_SECONDS = 0.2, 0.05
"""Seconds of sampling each figure, in each pass."""

TIME_LIMIT, QUICK_TIME_LIMIT = 0.75, 0.12
"""Seconds for each figure, after which those that do not agree are not measured again."""

LONGEST = 0.25
"""Seconds of one operation; larger ones are left out."""

LEAST_SHARE = 0.5
"""The least share of an operation's time that is its own: no rate is more than doubled by leaving the dispatch out."""

MEMORY_SHARE = 16
"""The memory must hold so many of the largest tensor."""

COPIES = ("copy to the device", "copy from the device")

COPIED = 2**28
"""Bytes of a copy to a device."""

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # of mallopt(3)


def main() -> None:
    """Measure, and write the part."""
    order = Order.model_validate_json(sys.argv[1])
    libc = ctypes.CDLL(None)
    # Memory that was freed stays the process's own: a bandwidth is not that of getting new pages from the system.
    for option, value in ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1)):
        libc.mallopt(option, value)
    report = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what TensorFlow may print is not part of the report

    def tell(**what: Any) -> None:
        print(json.dumps(what), file=report, flush=True)

    def begin() -> None:
        tell(ready=True)
        sys.stdin.readline()

    tell(part=measure_part(order, begin, lambda words: tell(doing=words)).model_dump(mode="json"))
    report.close()
    os._exit(0)  # tearing TensorFlow down takes time


def measure_part(order: Order, begin: Callable[[], None], on_step: Callable[[str], None]) -> Part:
    """Measure all, in a process in which TensorFlow has not started yet.

    Args:
        order: what is to be measured. Products are one operation at a time.
        begin: is called when all is compiled; returns when it may be measured.
        on_step: is told what is being done.
    """
    on_step("TensorFlow starts")
    with absent(*KERAS_CAN_DO_WITHOUT):
        import tensorflow as tf

    from tfperf.hardware.ceilings.cases import Case, cases
    from tfperf.hardware.ceilings.looping import GRAPH_OP, dispatch_tasks, dispatches

    tf.config.threading.set_intra_op_parallelism_threads(order.threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(order.memory, default=1))
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    names = [str(tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)) for gpu in gpus]

    last: dict[str, float] = {}  # kind -> seconds of a unit of work
    refusals: dict[str, str] = {}

    def runs(case: Case) -> bool:
        """Whether TensorFlow can, and in a bearable time."""
        if case.kind in refusals or last.get(case.kind, 0.0) * case.work > LONGEST:
            return False
        try:
            last[case.kind] = case.sampler()() / case.work
        except (tf.errors.OpError, TypeError, ValueError, NotImplementedError) as error:
            refusals[case.kind] = shortened(error)
            return False
        return True

    # What is to be timed must stay as it is written: a chain of products with a number would be made one.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    on_step("compiling what is to be measured")
    largest = psutil.virtual_memory().available // MEMORY_SHARE
    able = [case for case in cases(order, largest, on_gpu=bool(gpus)) if runs(case)]
    able.sort(key=lambda case: case.work, reverse=True)  # peaks and the memory itself: they are taken again first
    calls = _call_tasks(tf) if order.calls else []
    turns = dispatch_tasks(compiled=bool(order.memory) and not gpus)
    tasks = [*calls, *turns, *(_copy_tasks(tf) if gpus else [])]
    kinds = {task.name: "calls" for task in tasks} | {case.name: case.kind for case in able}
    begin()
    repeats = in_turns(
        [*tasks, *(TimedTask(case.name, case.sampler) for case in able)],
        QUICK_SECONDS if order.quick else SECONDS,
        time_limit=(QUICK_TIME_LIMIT if order.quick else TIME_LIMIT) * len(kinds),
        on_turn=on_change(on_step, kinds.__getitem__),
    )
    seconds = {one.name: one.seconds for one in repeats}
    agree = {one.name: one.agree for one in repeats}
    each = dispatches(seconds)
    figures = []
    for case in able:
        taken = seconds[case.name]
        own = taken - sum(count * each[name] for name, count in case.dispatches.items())
        net = max(own, LEAST_SHARE * taken)
        figures.append(case.figure(case.work / net).model_copy(update={"repeatable": agree[case.name]}))
    return Part(
        environment=Environment.here(),
        device=names[0] if names else "CPU",
        products=tuple(one for one in figures if isinstance(one, ProductRate)),
        bandwidths=tuple(one for one in figures if isinstance(one, Bandwidth)),
        calls=(
            CallCost(name=GRAPH_OP, seconds=each[GRAPH_OP], repeatable=all(agree[task.name] for task in turns)),
            *(CallCost(name=one.name, seconds=seconds[one.name], repeatable=agree[one.name]) for one in calls),
        ),
        to_device_bytes_per_second=COPIED / seconds[COPIES[0]] if gpus else None,
        from_device_bytes_per_second=COPIED / seconds[COPIES[1]] if gpus else None,
        refusals=tuple(Refusal(name=name, reason=reason) for name, reason in refusals.items()),
        passes={one.name: one.passes for one in repeats},
    )


def _call_tasks(tf: Any) -> list[TimedTask]:
    """Calls that compute next to nothing, the cheapest first."""
    import keras

    x = tf.ones([1, 16])
    function = tf.function(lambda x: x + 1.0, autograph=False)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16)])
    return [
        TimedTask("python call", lambda: _calling(lambda: None, 20_000)),
        TimedTask("eager op", lambda: _calling(lambda: tf.add(x, x), 200)),
        TimedTask("tf.function call", lambda: _calling(lambda: function(x), 5)),
        TimedTask("model call", lambda: _calling(lambda: model(x), 3)),
    ]


def _calling(call: Callable[[], object], calls: int) -> Sample:
    """Seconds of one call, of so many in a row."""
    wait = device_synchronizer()

    def sample() -> float:
        rounds = itertools.repeat(None, calls)
        start = time.perf_counter()
        for _ in rounds:
            call()
        wait()
        return (time.perf_counter() - start) / calls

    sample()
    return sample


def _copy_tasks(tf: Any) -> list[TimedTask]:
    """Copies between the memory of the host and of the first GPU."""

    def to_device() -> Sample:
        with tf.device("/CPU:0"):
            numbers = tf.zeros([COPIED // 4])
        return _calling(lambda: numbers.gpu(), 1)

    def from_device() -> Sample:
        with tf.device("/GPU:0"):
            numbers = tf.zeros([COPIED // 4])
        return _calling(lambda: numbers.cpu(), 1)

    return [TimedTask(COPIES[0], to_device), TimedTask(COPIES[1], from_device)]


if __name__ == "__main__":
    main()
