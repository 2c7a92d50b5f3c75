"""Fake machines for the doctor: interpreters that crash or hang, and a PATH with nothing but what a test puts there."""

import json
import stat
import sys

import pytest

from tfperf.doctor.tensorflow import ProbeReport, probing

WELL = {
    "tensorflow": {"version": "2.21.0", "cuda": True, "cuda_version": "12.5.1", "cudnn_version": "9", "onednn": True},
    "keras": {"version": "3.15.1", "backend": "tensorflow"},
    "gpus": {"gpus": []},
    "xla": {"device": "CPU:0"},
}


@pytest.fixture
def well():
    """A function that makes the report of a TensorFlow in good health, with some steps changed; None: left out."""

    def well(end="", **steps):
        changed = WELL | steps
        return ProbeReport({step: found for step, found in changed.items() if found is not None}, end)

    return well


@pytest.fixture
def probing_of():
    """A function that has some lines of Python stand for TensorFlow's process."""

    def probing_of(*lines, deadline=60.0):
        code = "\n".join(["import json, os, signal, sys, time", *lines])
        return probing([sys.executable, "-S", "-c", code], deadline)

    return probing_of


@pytest.fixture
def printed():
    """A function: the line of Python that prints these steps as the probe does."""

    def printed(**steps):
        lines = "\n".join(json.dumps({"step": step, **found}) for step, found in steps.items())
        return f"print({lines!r}, flush=True)"

    return printed


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A function that puts a shell script on the PATH, which has nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def tools(name, script):
        tool = folder / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        return tool

    return tools


@pytest.fixture
def versions(monkeypatch):
    """A function that fakes what is installed: package -> version; all others are not."""

    def versions(**installed):
        from importlib import metadata

        def version(package):
            if package.replace("-", "_") not in installed:
                raise metadata.PackageNotFoundError(package)
            return installed[package.replace("-", "_")]

        monkeypatch.setattr(metadata, "version", version)

    return versions
