"""TensorFlow tried for real. Run as a script, in a process that may crash or hang: see `tensorflow.py`.

For each step a line of JSON is printed: {"step": name, ...what was found} or {"step": name, "error": words}.
A step without a line is the one in which the process ended. Its one argument is the number of seconds
after which the process ends itself, should nobody be left to end it.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["STEPS"]


def _tensorflow() -> dict[str, Any]:
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    return {
        "version": tf.__version__,
        "cuda": bool(build["is_cuda_build"]),
        "cuda_version": build.get("cuda_version"),
        "cudnn_version": build.get("cudnn_version"),
        "onednn": _uses_onednn(),
    }


def _uses_onednn() -> bool | None:
    """Whether TensorFlow's kernels use oneDNN in this process; None where it does not tell."""
    try:
        from tensorflow.python.util import _pywrap_util_port  # no public name tells
    except ImportError:
        return None
    return bool(_pywrap_util_port.IsMklEnabled())


def _keras() -> dict[str, Any]:
    import keras

    return {"version": keras.__version__, "backend": keras.backend.backend()}


def _gpus() -> dict[str, Any]:
    import tensorflow as tf

    gpus = []
    for device in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(device)
        capability = details.get("compute_capability")
        gpus.append(
            {
                "name": str(details.get("device_name", device.name)),
                "compute_capability": ".".join(map(str, capability)) if capability else None,
            }
        )
    return {"gpus": gpus}


def _xla() -> dict[str, Any]:
    """A function compiled by XLA, on the device that TensorFlow chooses; jit_compile=True compiles or raises."""
    import tensorflow as tf

    compiled = tf.function(lambda x: tf.reduce_sum(x * x + 1.0), jit_compile=True, autograph=False)
    result = compiled(tf.constant([1.0, 2.0, 3.0]))
    if float(result) != 17.0:
        raise ArithmeticError(f"expected 17 from a compiled function, received {float(result)}")
    return {"device": result.device.rpartition("device:")[2] or result.device}


STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    "tensorflow": _tensorflow,
    "keras": _keras,
    "gpus": _gpus,
    "xla": _xla,
}
"""Step -> what it looks at, in order."""


def main() -> None:
    """Take each step; without TensorFlow none follows the first."""
    signal.alarm(int(sys.argv[1]))
    report = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what TensorFlow itself may print is not part of the report
    for step, take in STEPS.items():
        try:
            found = take()
        except Exception as error:  # whatever importing them raises is a finding
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"step": step, **found}), file=report, flush=True)
        if step == "tensorflow" and "error" in found:
            break
    report.flush()
    os._exit(0)  # what matters is said; tearing TensorFlow down takes time and may crash


if __name__ == "__main__":
    main()
