"""Other engines that can run an exported net. All are optional."""

from collections.abc import Mapping

from tfperf.doctor.finding import Finding, State
from tfperf.doctor.packages import installed_version
from tfperf.doctor.shell import pip_install

__all__ = ["ENGINES", "look"]

ENGINES: Mapping[str, tuple[str, ...]] = {
    "LiteRT": ("ai-edge-litert",),
    "ONNX Runtime": ("onnxruntime", "onnxruntime-gpu"),
    "tf2onnx": ("tf2onnx",),
    "OpenVINO": ("openvino",),
}
"""Engine or converter -> the packages that hold it, any of which will do; the first is the one to install."""


def look(engines: Mapping[str, tuple[str, ...]] = ENGINES) -> list[Finding]:
    """One finding for each engine."""
    return [_examined(name, packages) for name, packages in engines.items()]


def _examined(name: str, packages: tuple[str, ...]) -> Finding:
    for package in packages:
        if version := installed_version(package):
            return Finding(name, State.OK, f"{package} {version} is installed")
    return Finding(name, State.NOTE, "not installed", pip_install(packages[0]))
