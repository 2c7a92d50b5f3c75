"""Record how this machine's timings really scatter, for the tests of tfperf.measure to replay.

    python benchmarks/record_noise.py tests/measure/noise

Each trace holds the durations of some 20,000 consecutive runs of one workload, or of 20 seconds. They
are stored as factors of their median, in their order, in 16-bit steps of 2**(1/4096),
so a step is 0.017 %, and the range is 1/16 to 4096. Each workload is recorded once on the machine as it
is, and once beside two processes that compute in bursts. Takes 2 to 3 minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

SAMPLES = 20_000
SECONDS = 20.0
WARM_UP_SECONDS = 1.0
SAMPLE_SECONDS = 0.5e-3  # about what one sample lasts: short beside bursts, long beside the clock
STEPS_PER_OCTAVE = 4096
LOWEST_OCTAVE = -4


def python_work() -> Callable[[], object]:
    """Pure Python: adding small numbers."""
    numbers = list(range(100))
    return lambda: sum(number * number for number in numbers)


def numpy_work() -> Callable[[], object]:
    """A NumPy product of matrices, on one thread."""
    a = np.random.default_rng(0).normal(size=(128, 128))
    return lambda: a @ a


def tensorflow_work() -> Callable[[], object]:
    """A tf.function with a few small operations, on TensorFlow's own thread pool."""
    import tensorflow as tf

    weights = tf.random.stateless_normal((256, 256), seed=(1, 2))

    @tf.function
    def dense(x):  # (32, 256) -> (32, 256)
        return tf.nn.relu(x @ weights) @ weights

    x = tf.ones((32, 256))
    return lambda: dense(x)


WORKLOADS = {"python": python_work, "numpy": numpy_work, "tensorflow": tensorflow_work}


def main() -> None:
    parser = argparse.ArgumentParser(description="Record real timing noise for the tests.")
    parser.add_argument("folder", type=Path, help="where the traces go")
    parser.add_argument("--one", choices=WORKLOADS, help=argparse.SUPPRESS)  # the fresh process of one workload
    parser.add_argument("--label", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        record(arguments.folder, arguments.one, arguments.label)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    facts = {}
    for label in ("quiet", "loaded"):
        burners = [subprocess.Popen([sys.executable, "-c", BURNER]) for _ in range(2)] if label == "loaded" else []
        try:
            for workload in WORKLOADS:
                command = [sys.executable, __file__, str(arguments.folder), "--one", workload, "--label", label]
                environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                facts[f"{workload}_{label}"] = json.loads(done.stdout.splitlines()[-1])
                print(workload, label, facts[f"{workload}_{label}"], flush=True)
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
    (arguments.folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def record(folder: Path, workload: str, label: str) -> None:
    """Record one trace in this process, and print what it was recorded under as a line of JSON."""
    work = WORKLOADS[workload]()
    until = time.perf_counter() + WARM_UP_SECONDS
    calls, fastest = 0, float("inf")
    while time.perf_counter() < until:
        start = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - start)
    calls = max(1, round(SAMPLE_SECONDS / fastest))
    machine = psutil.cpu_times()
    clock, durations = time.perf_counter, []
    last = clock()
    until = last + SECONDS
    while len(durations) < SAMPLES and last < until:
        for _ in range(calls):
            work()
        now = clock()  # one reading ends a sample and begins the next: no time is lost between them
        durations.append(now - last)
        last = now
    passed = {field: getattr(psutil.cpu_times(), field) - getattr(machine, field) for field in machine._fields}
    median = float(np.median(durations))
    octaves = np.log2(np.array(durations) / median)
    codes = np.round((octaves - LOWEST_OCTAVE) * STEPS_PER_OCTAVE)
    np.save(folder / f"{workload}_{label}.npy", np.clip(codes, 0, 2**16 - 1).astype(np.uint16))
    facts = {
        "median_seconds": float(f"{median:.4g}"),
        "samples": len(durations),
        "idle_share": round(passed["idle"] / sum(passed.values()), 3),
        "steal_share": round(passed.get("steal", 0.0) / sum(passed.values()), 4),
    }
    print(json.dumps(facts))


BURNER = """
import random, time
generator = random.Random()
while True:
    end = time.perf_counter() + generator.uniform(0.05, 1.5)
    while time.perf_counter() < end:
        sum(range(1000))
    time.sleep(generator.uniform(0.05, 1.5))
"""

if __name__ == "__main__":
    main()
