"""TensorFlow, Keras, XLA and GPUs, tried by `probe.py` in a process of its own: a crash or a hang is a finding."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tfperf.doctor import probe
from tfperf.doctor.findings import Finding, State, pip_install
from tfperf.doctor.python import required
from tfperf.errors import shortened
from tfperf.processes import PIPE, ChildProcess, LastBytes, Patience, run

__all__ = ["ProbeReport", "examine_gpus", "examine_tensorflow", "probing"]

DEADLINE_S = 120.0
"""Seconds that TensorFlow may take. It needs 3 to 8; from a cold network disk on a busy machine, many times that."""

SMI_S = 10.0
"""Seconds after which NVIDIA's tool is given up."""

_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # else it takes all memory of a GPU, which others may be using
}
_CHOOSE_TENSORFLOW = "export KERAS_BACKEND=tensorflow"
_SMI = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
_DEVICE_FILES = "dev/nvidia[0-9]*"
_GPU = "GPU"


@dataclasses.dataclass(frozen=True)
class ProbeReport:
    """What the probe had to say.

    Attributes:
        steps: step -> what was found; a step that was not finished is not there.
        end: how the process ended, in words; "" where it ended well.
    """

    steps: dict[str, dict[str, Any]]
    end: str = ""

    def error(self, step: str) -> str:
        """Why a step gave no result, in words; "" where it gave one."""
        if step in self.steps:
            return str(self.steps[step].get("error", ""))
        last = self._last_begun()
        return (self.end or "its process said nothing of it") if step == last else f"not tried, because {last} failed"

    def was_tried(self, step: str) -> bool:
        """Whether the step was begun: it gave a result or an error, or the process ended in it."""
        return step in self.steps or step == self._last_begun()

    def _last_begun(self) -> str:
        """The step in which the process ended; without TensorFlow the others are not begun."""
        if "error" in self.steps.get("tensorflow", {}):
            return "tensorflow"
        return next((step for step in probe.STEPS if step not in self.steps), "")


@contextlib.contextmanager
def probing(command: Sequence[str] | None = None, deadline: float = DEADLINE_S) -> Iterator[Callable[[], ProbeReport]]:
    """Have the probe run during the `with` block; give the function that waits for its end and says what came of it.

    Args:
        command: what to run instead of this Python with `probe.py`.
        deadline: seconds from now after which the process is ended.
    """
    # -P: the modules beside the script, and in the working folder, must not be taken for the packages
    own = [sys.executable, "-P", probe.__file__, str(int(deadline) + 10)]
    patience = Patience(deadline)
    try:
        process = ChildProcess(command or own, stdout=PIPE, stderr=PIPE, environment=_ENVIRONMENT | os.environ)
    except OSError as error:
        failure = f"no process can be started: {error}"
        yield lambda: ProbeReport({}, failure)
        return
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        printed, said = LastBytes(process.stdout), LastBytes(process.stderr)

        def report() -> ProbeReport:
            try:
                code = process.wait(patience.left())
            except TimeoutError:
                process.end()
                words = f"it did not finish within {deadline:g} s and was ended"
                return ProbeReport(_steps(printed.text()), words)
            return ProbeReport(_steps(printed.text()), _words_of_the_end(code, said.text()))

        yield report


def _words_of_the_end(code: int, said: str) -> str:
    """How a process ended that had this exit code, and said this on standard error; "" where it ended well."""
    if code == 0:
        return ""
    how = f"ended with exit code {code}" if code > 0 else f"was ended by {_signal_name(-code)}"
    reason = {
        -signal.SIGILL: ", an illegal instruction: this build wants instructions that the CPU lacks",
        -signal.SIGKILL: ", as the kernel does where memory runs out",
    }.get(code, "")
    lines = [line for line in said.splitlines() if line.strip()]
    last = f"; its last words: {shortened(lines[-1])}" if lines else ""
    return f"its process {how}{reason}{last}"


def _steps(printed: str) -> dict[str, dict[str, Any]]:
    """The steps that a probe reported; a line that is no report is passed over."""
    steps = {}
    for line in printed.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(line)
            steps[str(found.pop("step"))] = found
    return steps


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def examine_tensorflow(report: ProbeReport) -> list[Finding]:
    """What the probe's report says of TensorFlow, Keras and XLA."""
    return [_tensorflow(report), _keras(report), _xla(report)]


def _failed(subject: str, step: str, report: ProbeReport, mend: str = "") -> Finding:
    """The finding for a step that gave no result: unfit, or just a note where it was not its own fault."""
    if not report.was_tried(step):
        return Finding(subject, State.NOTE, report.error(step))
    error = report.error(step)
    return Finding(subject, State.MISSING if error.startswith("ModuleNotFoundError") else State.UNFIT, error, mend)


def _tensorflow(report: ProbeReport) -> Finding:
    if error := report.error("tensorflow"):
        # An error of Python comes from packages that do not fit together; a crash is not mended by the same build.
        again = [] if error.startswith("ModuleNotFoundError") else ["--force-reinstall"]
        mend = pip_install(*again, required("tensorflow")) if "tensorflow" in report.steps else ""
        return _failed("TensorFlow", "tensorflow", report, mend)
    found = report.steps["tensorflow"]
    build = "built without CUDA"
    if found["cuda"]:
        build = f"built for CUDA {found['cuda_version']} and cuDNN {found['cudnn_version']}"
    onednn = {True: "oneDNN on", False: "oneDNN off", None: "oneDNN not told"}[found["onednn"]]
    return Finding("TensorFlow", State.OK, f"{found['version']} imports, {build}, {onednn}")


def _keras(report: ProbeReport) -> Finding:
    chosen, where = _chosen_backend()
    if error := report.error("keras"):
        if chosen not in (None, "tensorflow") and report.was_tried("keras"):
            return Finding("Keras", State.UNFIT, f"{error}; {where} chooses {chosen}", _CHOOSE_TENSORFLOW)
        return _failed("Keras", "keras", report, pip_install("--force-reinstall", required("keras")))
    found = report.steps["keras"]
    words = f"{found['version']}, backend {found['backend']}"
    if found["backend"] != "tensorflow":
        by = f", which {where} chooses" if where else ""
        return Finding("Keras", State.UNFIT, f"{words}{by}; expected backend tensorflow", _CHOOSE_TENSORFLOW)
    return Finding("Keras", State.OK, words)


def _xla(report: ProbeReport) -> Finding:
    if report.error("xla"):
        return _failed("XLA", "xla", report)
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


def examine_gpus(report: ProbeReport, *, root: Path = Path("/")) -> list[Finding]:
    """What TensorFlow sees, against what the machine has.

    Args:
        report: of the probe.
        root: the folder that holds `proc`, `dev` and `sys`.
    """
    asked = _nvidia_smi()
    cards = asked or _nvidia_cards(root)
    has = f"the machine has {_counted(len(cards), 'NVIDIA card')}: {'; '.join(cards)}" if cards else ""
    if report.error("gpus"):
        finding = _failed(_GPU, "gpus", report)
        return [finding, *([Finding("NVIDIA card", State.NOTE, has)] if has else [])]
    gpus = [_gpu_words(gpu) for gpu in report.steps["gpus"]["gpus"]]
    sees = f"TensorFlow sees {_counted(len(gpus), 'GPU')}: {'; '.join(gpus)}" if gpus else "TensorFlow sees none"
    if len(gpus) < len(cards):
        is_given = bool(asked) or any(root.glob(_DEVICE_FILES))
        reason, mend = _unseen(len(gpus), is_given, report)
        return [Finding(_GPU, State.NOTE, f"{sees}, but {has}{reason}", mend)]
    if gpus:
        return [Finding(_GPU, State.OK, f"{sees}{f'; {has}' if has else ''}")]
    if _has_card_without_driver(root):
        words = f"{sees}: there is an NVIDIA card, but no driver of NVIDIA's is loaded; install it"
        return [Finding(_GPU, State.NOTE, words)]
    return [Finding(_GPU, State.NOTE, f"{sees}, and no NVIDIA card was found: all runs on the CPU")]


def _nvidia_smi(timeout: float = SMI_S) -> list[str]:
    """Name, memory and driver version of each card, as NVIDIA's own tool tells; none where it does not work."""
    try:
        done = run(_SMI, deadline=timeout)
    except OSError:
        return []
    return [line for line in done.output.splitlines() if line.count(",") == 2] if done.code == 0 else []


def _nvidia_cards(root: Path) -> list[str]:
    """The cards that the driver names below `proc`; else their files below `dev`."""
    texts = [
        file.read_text(errors="replace", encoding="utf-8")
        for file in sorted(root.glob("proc/driver/nvidia/gpus/*/information"))
    ]
    models = [re.search(r"^Model:\s*(.+)$", text, re.MULTILINE) for text in texts]
    names = [model.group(1).strip() if model else "of unknown model" for model in models]
    return names or [f"/dev/{file.name}" for file in sorted(root.glob(_DEVICE_FILES))]


def _unseen(seen: int, is_given: bool, report: ProbeReport) -> tuple[str, str]:
    """Why TensorFlow does not see all cards, in words, and what mends it.

    Args:
        seen: how many it sees.
        is_given: whether this process may reach the cards at all.
        report: of the probe.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (seen or visible.strip() in ("", "-1")):
        return f"; CUDA_VISIBLE_DEVICES is {visible!r}", "unset CUDA_VISIBLE_DEVICES"
    if not is_given:
        return "; there is no /dev/nvidia0, so this container was started without them", ""
    version = report.steps["tensorflow"]["version"]
    return "", pip_install(f"tensorflow[and-cuda]=={version}")  # the extra holds the libraries it was built for


def _gpu_words(gpu: dict[str, str | None]) -> str:
    capability = gpu["compute_capability"]
    return f"{gpu['name']}{f' (compute capability {capability})' if capability else ''}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _has_card_without_driver(root: Path) -> bool:
    """Whether the PCI bus has a display controller (class 03) of NVIDIA (vendor 10de)."""
    for vendor in root.glob("sys/bus/pci/devices/*/vendor"):
        with contextlib.suppress(OSError):
            kind = vendor.with_name("class").read_text(encoding="utf-8")
            if vendor.read_text(encoding="utf-8").strip() == "0x10de" and kind.startswith("0x03"):
                return True
    return False
