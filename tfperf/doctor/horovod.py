"""Horovod: is it there, was it built for this TensorFlow, and could it be built? All optional."""

from tfperf.doctor.finding import Finding, State
from tfperf.doctor.shell import apt_install, own_command
from tfperf.errors import HorovodError

__all__ = ["look"]


def look() -> list[Finding]:
    """One finding for Horovod, one for what a build of it needs."""
    return [_horovod(), _toolchain()]


def _horovod() -> Finding:
    from tfperf.parallel.horovod_build import installed

    horovod = installed()
    mend = own_command("tfperf", "horovod", "install")
    if horovod is None:
        return Finding("Horovod", State.NOTE, "not installed", mend)
    words = str(horovod).removeprefix("Horovod ")
    if horovod.problem is not None:
        return Finding("Horovod", State.NOTE, f"{words}, does not work here: {horovod.problem}", mend)
    return Finding("Horovod", State.OK, words if horovod.nccl is None else f"{words} {horovod.nccl}")


def _toolchain() -> Finding:
    from tfperf.parallel.horovod_build.toolchain import check_make, find_compiler

    subject = "C++ compiler"
    try:
        compiler = find_compiler()
        check_make()
    except HorovodError as error:
        return Finding(subject, State.NOTE, str(error), apt_install("g++", "make"))
    return Finding(subject, State.OK, f"{compiler}, and make")
