"""GPUs: those that TensorFlow sees, and NVIDIA cards in the machine that it does not see."""

import os
import re
from pathlib import Path

from tfperf.doctor.finding import Finding, State
from tfperf.doctor.shell import answer, pip_install
from tfperf.doctor.tensorflow import failed
from tfperf.doctor.trial import Report

__all__ = ["look", "nvidia_cards", "nvidia_smi"]

_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
_DEVICE_FILES = "dev/nvidia[0-9]*"
_SUBJECT = "GPU"


def look(report: Report, *, root: Path = Path("/")) -> list[Finding]:
    """What TensorFlow sees, against what the machine has.

    Args:
        report: of the trial.
        root: the folder that holds `proc`, `dev` and `sys`.
    """
    asked = nvidia_smi()
    cards = asked or nvidia_cards(root)
    has = f"the machine has {_counted(len(cards), 'NVIDIA card')}: {'; '.join(cards)}" if cards else ""
    if report.error("gpus"):
        finding = failed(_SUBJECT, "gpus", report)
        return [finding, *([Finding("NVIDIA card", State.NOTE, has)] if has else [])]
    gpus = [_gpu_words(gpu) for gpu in report.steps["gpus"]["gpus"]]
    sees = f"TensorFlow sees {_counted(len(gpus), 'GPU')}: {'; '.join(gpus)}" if gpus else "TensorFlow sees none"
    if len(gpus) < len(cards):
        is_given = bool(asked) or any(root.glob(_DEVICE_FILES))
        reason, mend = _unseen(len(gpus), is_given, report)
        return [Finding(_SUBJECT, State.NOTE, f"{sees}, but {has}{reason}", mend)]
    if gpus:
        return [Finding(_SUBJECT, State.OK, f"{sees}{f'; {has}' if has else ''}")]
    if _has_card_without_driver(root):
        words = f"{sees}: there is an NVIDIA card, but no driver of NVIDIA's is loaded; install it"
        return [Finding(_SUBJECT, State.NOTE, words)]
    return [Finding(_SUBJECT, State.NOTE, f"{sees}, and no NVIDIA card was found: all runs on the CPU")]


def nvidia_smi() -> list[str]:
    """Name, memory and driver version of each card, as NVIDIA's own tool tells; none where it does not work."""
    return [line for line in (answer(*_QUERY) or "").splitlines() if line.count(",") == 2]


def nvidia_cards(root: Path) -> list[str]:
    """The cards that the driver names below `proc`; else their files below `dev`."""
    texts = [
        file.read_text(errors="replace", encoding="utf-8")
        for file in sorted(root.glob("proc/driver/nvidia/gpus/*/information"))
    ]
    models = [re.search(r"^Model:\s*(.+)$", text, re.MULTILINE) for text in texts]
    names = [model.group(1).strip() if model else "of unknown model" for model in models]
    return names or [f"/dev/{file.name}" for file in sorted(root.glob(_DEVICE_FILES))]


def _unseen(seen: int, is_given: bool, report: Report) -> tuple[str, str]:
    """Why TensorFlow does not see all cards, in words, and what mends it.

    Args:
        seen: how many it sees.
        is_given: whether this process may reach the cards at all.
        report: of the trial.
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
        try:
            if vendor.read_text(encoding="utf-8").strip() == "0x10de" and vendor.with_name("class").read_text(
                encoding="utf-8"
            ).startswith("0x03"):
                return True
        except OSError:
            continue
    return False
