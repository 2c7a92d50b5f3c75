"""What an explanation holds a model against: this process's threads, and what this machine gives."""

from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from tfperf.engines import tensorflow_runtime
from tfperf.errors import ThreadsError
from tfperf.explaining.explanation import Explained, Roof
from tfperf.hardware.ceilings import Ceilings
from tfperf.hardware.ceilings.measuring import measure_ceilings
from tfperf.hardware.kernels.times import KernelTimes
from tfperf.hardware.machine import ceilings_of_this_machine
from tfperf.measure import Doubt
from tfperf.system import usable_cores

__all__ = ["ceilings_for", "doubts_about", "roofs_of", "use_threads"]

DISTURBED = 1.3
"""Times as long as at best, in a usual run, above which it is told."""


def use_threads(threads: int | None) -> int:
    """Have TensorFlow use so many threads, or as many as there are cores, on the CPU; how many these are.

    Raises:
        ThreadsError: TensorFlow has started with another number.
    """
    wanted = threads or usable_cores()
    try:
        tensorflow_runtime.use_threads(wanted)
    except ThreadsError:
        if (tf.config.threading.get_intra_op_parallelism_threads() or usable_cores()) != wanted:
            raise
    return wanted


def ceilings_for(threads: int, quick: bool, fresh: bool, cache: Path | None, tell: Callable[[str], None]) -> Ceilings:
    """The machine's ceilings that are kept, where they were measured with so many threads; else measured now.

    Raises:
        HardwareError: they cannot be measured.
    """
    known = ceilings_of_this_machine(cache, fresh, quick, tell)
    return known if threads in known.threads else measure_ceilings([threads], quick, tell)


def roofs_of(ceilings: Ceilings, threads: int) -> tuple[Roof, ...]:
    """The peaks of the types that are faster than float32, and the bandwidths of the fastest and the largest memory."""
    measured = [one.dtype for one in ceilings.products if one.threads == threads and one.dtype.startswith(("f", "b"))]
    peaks = {dtype: ceilings.peak(dtype, threads) for dtype in measured}
    flops = [
        Roof(name=dtype, flops_per_second=peak)
        for dtype, peak in peaks.items()
        if dtype == "float32" or peak > peaks.get("float32", 0.0)
    ]
    curve = [one for one in ceilings.bandwidths if one.threads == threads and one.kind == "pointwise"]
    fastest = max(curve, key=lambda one: one.bytes_per_second)
    farthest = max(curve, key=lambda one: one.working_set)
    return (
        *flops,
        Roof(name="caches", bytes_per_second=fastest.bytes_per_second),
        Roof(name="memory", bytes_per_second=farthest.bytes_per_second),
    )


def doubts_about(ceilings: Ceilings, times: KernelTimes, found: Sequence[Explained]) -> tuple[Doubt, ...]:
    """Reasons to trust an explanation less: those of the ceilings, the kernels and the calls, each once."""
    doubts = list(ceilings.doubts)
    if times.unsure:
        words = f"too noisy: of {times.unsure} kernels by themselves no two measurements agree"
        doubts.append(Doubt(name="noisy", words=words, advice="what is predicted of them may be too long"))
    if (disturbance := max(one.disturbance for one in found)) > DISTURBED:
        words = f"disturbed: the kernels took {disturbance:.1f}x as long in a usual run as at best"
        advice = "calls are predicted as much longer, layers are told at their best; quiet the machine"
        doubts.append(Doubt(name="disturbed", words=words, advice=advice))
    doubts += [one for each in found if each.comparison for m in each.comparison.measurements for one in m.doubts]
    if tf.config.list_physical_devices("GPU"):
        doubts.append(
            Doubt(name="gpu", words="kernels were looked into on the CPU", advice="calls may have used the GPU")
        )
    return tuple({doubt.words: doubt for doubt in doubts}.values())
