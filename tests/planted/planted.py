"""Engines whose answers, speed and faults are known. They run nets of dense layers, in NumPy.

A folder on PYTHONPATH with this file and its .dist-info is an installed package, whose entry points tfperf finds. All
of these engines, but those whose converter is at fault, load the same folder. What they do is set by the environment:

PLANTED_SECONDS     of a call of `honest`, which all but four of the others take too [0.0002]
PLANTED_CALLS       after which `hang_in_call` and `exits` do what they are called [0]
PLANTED_BYTES       that `flood` prints, and that `grows` grows by with each call [2**20]
PLANTED_PIDS        file to which `forker` and the like add the processes that they start
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfperf.engines.catalog import Engine
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Runner
from tfperf.exports.signature import Signature

SECONDS = float(os.environ.get("PLANTED_SECONDS", "0.0002"))
CALLS = int(os.environ.get("PLANTED_CALLS", "0"))
BYTES = int(os.environ.get("PLANTED_BYTES", str(2**20)))

PACE = {"slower": 1.03, "wrong": 0.05, "memory_of_one": 0.05, "light": 5.0}
"""Engine -> its time as a share of that of `honest`."""

PIECE = b"no answer, and no end of a line either " * 1000

Arrays = tuple[NDArray[Any], ...]
Call = Callable[..., Arrays]


def convert(servable: Any, plan: Plan, examples: Sequence[NDArray[Any]], folder: Path) -> dict[str, str]:
    """Write kernel, bias and activation of each dense layer of a net that has no others."""
    if plan.engine == "hang_in_convert":
        hang()
    if plan.engine == "segfault_in_convert":
        tempfile.mkdtemp(prefix="left-")
        crash()
    if plan.engine == "hang_in_compile":
        (folder / "source").touch()
        return {}
    layers = [layer for layer in servable.net.layers if type(layer).__name__ == "Dense"]
    arrays = [array for layer in layers for array in layer.get_weights()]
    np.savez(folder / "weights.npz", *arrays)
    (folder / "activations.json").write_text(json.dumps([layer.get_config()["activation"] for layer in layers]))
    return {"precision": f"{len(arrays)} of {len(arrays)} arrays in float32"}


def compile_converted(source: Path, plan: Plan, folder: Path, proof: Mapping[str, str]) -> dict[str, str]:
    """Begin to, with what `convert` wrote."""
    if (source / "source").is_file():
        started(["-c", "import time; time.sleep(600)"])
        hang()
    return dict(proof)


def load(folder: Path, signature: Signature, plan: Plan, proof: Mapping[str, str]) -> Runner:
    """The net, its call changed as the engine's name says, and as long as its pace says."""
    fault = FAULTS.get(plan.engine, as_it_is)
    run = paced(fault(dense_net(folder)), PACE.get(plan.engine, 1.0) * SECONDS)
    proof = {**proof, "threads": "1, as all of it is Python"}
    if plan.engine == "odd_proof":
        proof = {"precision": "two\nlines"}
    size = (folder / "weights.npz").stat().st_size
    return Runner(plan, signature, run, proof=proof, size=size // 2 if plan.engine == "light" else size)


def dense_net(folder: Path) -> Call:
    """From (batch, features) to one array (batch, classes)."""
    with np.load(folder / "weights.npz") as stored:
        arrays = [stored[name] for name in stored.files]
    kernels, biases = arrays[::2], arrays[1::2]
    activations = json.loads((folder / "activations.json").read_text())

    def run(x: NDArray[Any]) -> Arrays:
        for kernel, bias, activation in zip(kernels, biases, activations, strict=True):
            x = x @ kernel + bias
            x = np.maximum(x, 0) if activation == "relu" else x
        return (x,)

    return run


def paced(run: Call, seconds: float) -> Call:
    """The call, busy until it has taken so long: a sleep would end some time later."""
    clock = time.perf_counter

    def run_in_time(*arrays: NDArray[Any]) -> Arrays:
        until = clock() + seconds
        answers = run(*arrays)
        while clock() < until:
            pass
        return answers

    return run_in_time


def as_it_is(run: Call) -> Call:
    """Right answers."""
    return run


def wrong(run: Call) -> Call:
    """All a little too large."""
    return lambda *arrays: tuple(answer * np.float32(1.01) for answer in run(*arrays))


def exchanged(run: Call) -> Call:
    """The two largest answers of a row exchanged, where its first number is above 0.9."""

    def exchange(x: NDArray[Any]) -> Arrays:
        (answers,) = run(x)
        rows = np.flatnonzero(x[:, 0] > 0.9)
        largest = answers[rows].argsort(axis=1)[:, -2:]
        answers[rows[:, None], largest] = answers[rows[:, None], largest[:, ::-1]]
        return (answers,)

    return exchange


def memory_of_one(run: Call) -> Call:
    """The right answer to the first input, and the same to all others."""
    remembered: list[Arrays] = []

    def recall(*arrays: NDArray[Any]) -> Arrays:
        if not remembered:
            remembered.append(run(*arrays))
        return remembered[0]

    return recall


def nan(run: Call) -> Call:
    """One NaN among right answers."""

    def spoiled(*arrays: NDArray[Any]) -> Arrays:
        answers = run(*arrays)
        answers[0].flat[-1] = np.nan
        return answers

    return spoiled


def raises(run: Call) -> Call:
    """An error in several lines."""

    def refuse(*arrays: NDArray[Any]) -> Arrays:
        raise RuntimeError("no\n  such\x1b[31m operation")

    return refuse


def hang_in_build(run: Call) -> Call:
    """No end of loading."""
    hang()
    return run


def hang_in_call(run: Call) -> Call:
    """No answer after some calls."""
    return after_calls(run, hang)


def exits(run: Call) -> Call:
    """The end of the process after some calls, with last words."""

    def leave() -> None:
        sys.stderr.write("\x1b[31mout of luck\n\n")
        os._exit(7)

    return after_calls(run, leave)


def stops_itself(run: Call) -> Call:
    """`sys.exit` in the middle of a call, as code for the command line does it."""
    return after_calls(run, lambda: sys.exit("usage: planted"))


def segfault(run: Call) -> Call:
    """An address that is not ours, read in a call."""
    return after_calls(run, crash)


def hog(run: Call) -> Call:
    """All memory there is, touched."""

    def take(*arrays: NDArray[Any]) -> Arrays:
        taken = []
        while True:
            taken.append(np.ones(2**22, np.uint8))

    return take


def hog_child(run: Call) -> Call:
    """All memory there is, taken by a process of its own."""
    started(["-c", "import time\ntaken = []\nwhile True: taken.append(bytearray(2**22)); time.sleep(0.01)"])
    return after_calls(run, hang)


def grows(run: Call) -> Call:
    """Right answers, and more memory with each call."""
    taken = []

    def grow(*arrays: NDArray[Any]) -> Arrays:
        taken.append(np.ones(BYTES, np.uint8))
        return run(*arrays)

    return grow


def flood(run: Call) -> Call:
    """Right answers, and much output by each of the three ways, before the first."""
    left = [BYTES]

    def talk(*arrays: NDArray[Any]) -> Arrays:
        while left[0] > 0:
            os.write(1, PIECE)
            os.write(2, PIECE + b"\n")
            print(PIECE.decode())
            left[0] -= 3 * len(PIECE)
        return run(*arrays)

    return talk


def forker(run: Call) -> Call:
    """Right answers, and a process in a session of its own that holds all pipes and stays."""
    if not (pid := os.fork()):
        os.setsid()
        hang()
    while os.getsid(pid) != pid:
        time.sleep(0.001)
    note(pid)
    return run


def spinner_child(run: Call) -> Call:
    """Right answers, and a process in a session of its own that burns a core."""
    started(["-c", "while True: pass"])
    return run


def plain_child(run: Call) -> Call:
    """Right answers, and a process in the session and the group of the engine's that stays."""
    started(["-c", "import signal; signal.pause()"], start_new_session=False)
    return run


def hidden_child(run: Call) -> Call:
    """Right answers, and a process in a session of its own, without the environment."""
    started(["-c", "import signal; signal.pause()"], env={})
    return run


def reads(run: Call) -> Call:
    """Right answers, and a look at standard input, of itself and of a process that it starts."""
    assert os.read(0, 1) == b""
    assert subprocess.run(["cat"], capture_output=True, timeout=20, check=True).stdout == b""
    return run


def shuts_pipes(run: Call) -> Call:
    """All that it has open closed, as daemons do, and no end."""

    def shut() -> None:
        os.closerange(3, 100)
        hang()

    return after_calls(run, shut)


FAULTS: dict[str, Callable[[Call], Call]] = {
    fault.__name__: fault
    for fault in (
        *(wrong, memory_of_one, nan, raises, hang_in_build, hang_in_call, exits, stops_itself, segfault, shuts_pipes),
        *(exchanged, hog, hog_child, grows, flood, forker, spinner_child, plain_child, hidden_child, reads),
    )
}
"""Engine -> what it does to the call."""


def after_calls(run: Call, act: Callable[[], object]) -> Call:
    """The call, which after `CALLS` does something else first."""
    left = [CALLS]

    def act_in_time(*arrays: NDArray[Any]) -> Arrays:
        if left[0] <= 0:
            act()
        left[0] -= 1
        return run(*arrays)

    return act_in_time


def hang() -> None:
    """Never return."""
    while True:
        signal.pause()


def crash() -> None:
    """Read from address 1."""
    ctypes.string_at(1)


def started(words: Sequence[str], **options: Any) -> None:
    """Start Python, in a session of its own unless the options say otherwise."""
    note(subprocess.Popen([sys.executable, "-I", "-S", *words], **{"start_new_session": True, **options}).pid)


def note(pid: int) -> None:
    """Tell the test which process was started."""
    if place := os.environ.get("PLANTED_PIDS"):
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(f"{pid}\n")


engines = SimpleNamespace(
    **{
        name: Engine(name, "planted for tests", ("float32",), format=its_format, module="planted")
        for its_format, names in {
            "planted": ("honest", "equal", "slower", "light", "odd_proof", *FAULTS),
            "hang_in_convert": ("hang_in_convert",),
            "segfault_in_convert": ("segfault_in_convert",),
        }.items()
        for name in names
    },
    hang_in_compile=Engine(
        "hang_in_compile", "planted for tests", ("float32",), format="compiled", compiled=True, module="planted"
    ),
    no_module=Engine("no_module", "planted for tests", ("float32",), format="planted", module="no_such_module"),
)
"""By their names, as the entry points have them."""
