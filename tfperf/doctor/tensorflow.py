"""TensorFlow and Keras as the trial found them: do they import, how are they built, does XLA compile?"""

import json
import os
from pathlib import Path

from tfperf.doctor.finding import Finding, State
from tfperf.doctor.packages import required
from tfperf.doctor.shell import pip_install
from tfperf.doctor.trial import Report

__all__ = ["failed", "look"]

_CHOOSE_TENSORFLOW = "export KERAS_BACKEND=tensorflow"


def look(report: Report) -> list[Finding]:
    """What the trial's report says of TensorFlow, Keras and XLA."""
    return [_tensorflow(report), _keras(report), _xla(report)]


def failed(subject: str, step: str, report: Report, mend: str = "") -> Finding:
    """The finding for a step that gave no result: unfit, or just a note where it was not its own fault."""
    if not report.was_tried(step):
        return Finding(subject, State.NOTE, report.error(step))
    error = report.error(step)
    return Finding(subject, State.MISSING if error.startswith("ModuleNotFoundError") else State.UNFIT, error, mend)


def _tensorflow(report: Report) -> Finding:
    if error := report.error("tensorflow"):
        # An error of Python comes from packages that do not fit together; a crash is not mended by the same build.
        again = [] if error.startswith("ModuleNotFoundError") else ["--force-reinstall"]
        mend = pip_install(*again, required("tensorflow")) if "tensorflow" in report.steps else ""
        return failed("TensorFlow", "tensorflow", report, mend)
    found = report.steps["tensorflow"]
    build = "built without CUDA"
    if found["cuda"]:
        build = f"built for CUDA {found['cuda_version']} and cuDNN {found['cudnn_version']}"
    onednn = {True: "oneDNN on", False: "oneDNN off", None: "oneDNN not told"}[found["onednn"]]
    return Finding("TensorFlow", State.OK, f"{found['version']} imports, {build}, {onednn}")


def _keras(report: Report) -> Finding:
    chosen, where = _chosen_backend()
    if error := report.error("keras"):
        if chosen not in (None, "tensorflow") and report.was_tried("keras"):
            return Finding("Keras", State.UNFIT, f"{error}; {where} chooses {chosen}", _CHOOSE_TENSORFLOW)
        return failed("Keras", "keras", report, pip_install("--force-reinstall", required("keras")))
    found = report.steps["keras"]
    words = f"{found['version']}, backend {found['backend']}"
    if found["backend"] != "tensorflow":
        by = f", which {where} chooses" if where else ""
        return Finding("Keras", State.UNFIT, f"{words}{by}; expected backend tensorflow", _CHOOSE_TENSORFLOW)
    return Finding("Keras", State.OK, words)


def _xla(report: Report) -> Finding:
    if report.error("xla"):
        return failed("XLA", "xla", report)
    return Finding("XLA", State.OK, f"compiled and ran a function on {report.steps['xla']['device']}")


def _chosen_backend() -> tuple[str | None, str]:
    """Keras's backend where somebody chose one, and what says so: the variable, else Keras's own file."""
    if "KERAS_BACKEND" in os.environ:
        return os.environ["KERAS_BACKEND"], "the variable KERAS_BACKEND"
    file = Path(os.path.expanduser(os.environ.get("KERAS_HOME", "~/.keras")), "keras.json")  # noqa: PTH111
    try:
        backend = json.loads(file.read_text(encoding="utf-8")).get("backend")
    except (OSError, ValueError, AttributeError):
        return None, ""
    return (str(backend), str(file)) if backend else (None, "")
