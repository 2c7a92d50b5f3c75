"""Files that are damaged in ways that a seed decides, and what becomes of reading them.

`good_files` writes a file of each kind, `mutated` damages it, and `read_all` has a process of its own read all of them:
each must be read, or refused by one line. benchmarks/faults.py does the same with more of them. Both load this file by
its path; run as a program it is the process that reads.
"""

import contextlib
import faulthandler
import io
import json
import resource
import struct
import subprocess
import sys
import time
import traceback
import zipfile
from pathlib import Path
from typing import NamedTuple

SECONDS = 5.0
"""For reading a file."""

MEMORY = 2**30
"""Bytes that reading a file may take, beyond those of the libraries."""

LONGEST = 2000
"""Letters of the one line that refuses a file."""

VALUES = (
    None, True, -1, 0, 10**12, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf"), "", "x", "nan", "\x1b[31m\u202e",
    "a" * 100_000, "../../etc/passwd", [], {}, [[]], {"": {}}, [1] * 1000, "class", "Lambda", "/", "float64",
)  # fmt: skip
"""What stands in place of a value of JSON."""

DEEP = 100_000
"""Brackets in one another."""


class Reading(NamedTuple):
    """What became of reading a file."""

    path: Path
    ended: str
    """read or refused; else what is wrong: a traceback, the end of the process, the time, the memory, several lines."""
    words: str
    seconds: float


# ------------------------------------------------------------ damage


def mutated(content, kind, generator):
    """Damage the content of a file of a kind."""
    ways = [flipped, cut, doubled]
    if kind in ("result", "outcome", "manifest", "plan"):
        ways += [changed_json] * 6
    elif kind in ("arrays", "net"):
        ways += [changed_zip] * 6
    return generator.choice(ways)(content, generator)


def flipped(content, generator):
    """One to eight bits are others."""
    changed = bytearray(content)
    for _ in range(generator.randint(1, 8)):
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def cut(content, generator):
    """It ends early, or lacks a piece."""
    start = generator.randrange(len(content))
    return content[:start] + content[start + generator.choice([len(content), 1, generator.randint(1, 1000)]) :]


def doubled(content, generator):
    """A piece comes twice, or zeros stand in its place."""
    start, size = generator.randrange(len(content)), generator.randint(1, 1000)
    piece = content[start : start + size]
    return content[:start] + generator.choice([piece * 2, bytes(len(piece))]) + content[start + size :]


def changed_json(content, generator):
    """A key is missing, comes twice or has another name; a value is another, or nested without end."""
    document = json.loads(content)
    holders = list(_holders(document))
    holder = generator.choice(holders)
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    key = generator.choice(list(keys))
    way = generator.choice(("value", "value", "value", "none", "renamed", "swapped", "deep", "twice"))
    if way == "value":
        holder[key] = generator.choice(VALUES)
    elif way == "none":
        del holder[key]
    elif way == "renamed" and isinstance(holder, dict):
        holder[f"{key}2"] = holder.pop(key)
    elif way == "swapped":
        other = generator.choice(holders)
        place = generator.choice(list(other) if isinstance(other, dict) else range(len(other)))
        holder[key] = json.loads(json.dumps(other[place]))
    elif way == "deep":
        holder[key] = "@deep"
    text = json.dumps(document, indent=1).replace('"@deep"', generator.choice(("[", '{"a":')) * DEEP)
    if way == "twice":
        text = text.replace("{", '{"format": "x", "format": "y", "class_name": 1, ', 1)
    return text.encode()


def _holders(value):
    """Every object and array that is not empty."""
    if isinstance(value, dict | list):
        if value:
            yield value
        for one in value.values() if isinstance(value, dict) else value:
            yield from _holders(one)


def changed_zip(content, generator):
    """A member is damaged, missing, renamed, there twice, in another's place, or its headers lie."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {one.filename: archive.read(one) for one in archive.infolist()}
    names = list(members)
    name, other = generator.choice(names), generator.choice(names)
    way = generator.choice(("inside", "inside", "inside", "none", "renamed", "twice", "swapped", "claims", "headers"))
    written = list(members.items())
    if way == "inside":
        way_inside = changed_json if name.endswith(".json") else generator.choice([flipped, cut, doubled])
        written = [(one, way_inside(kept, generator) if one == name else kept) for one, kept in written]
    elif way == "none":
        written = [(one, kept) for one, kept in written if one != name]
    elif way == "renamed":
        new = generator.choice(["../" + name, "/" + name, name + "2", "a/" + name, "\x1b[31m" + name, "n" * 60_000])
        written = [(new if one == name else one, kept) for one, kept in written]
    elif way == "twice":
        written.append((name, members[other]))
    elif way == "swapped":
        written = [(one, members[other] if one == name else kept) for one, kept in written]
    elif way == "claims":
        written = [(one, _claiming(kept, generator) if one == name else kept) for one, kept in written]
    made = io.BytesIO()
    method = generator.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(made, "w", method) as archive:
        for one, kept in written:
            archive.writestr(zipfile.ZipInfo(one), kept, method)
    return _lying(made.getvalue(), generator) if way == "headers" else made.getvalue()


def _claiming(member, generator):
    """An array whose header claims another shape or type, or that many bytes that are all alike."""
    shape = generator.choice(["(10000000000000,)", "(-1, 4)", "()", "(2, 2147483648, 4)", "4", "((" * 100 + "))" * 100])
    dtype = generator.choice(["<f4", "|O", "|V8", "<U999999999", "|S0", "x", "<f8"])
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    lying = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + member[-16:]
    return generator.choice([lying, lying, bytes(50 * 2**20)])


def _lying(archive, generator):
    """A central directory with other flags, methods, sizes or offsets."""
    changed, place = bytearray(archive), archive.find(b"PK\x01\x02")
    field = generator.choice([8, 10, 16, 20, 24, 28, 42])  # APPNOTE 4.3.12
    value = generator.choice([1, 99, 0xFFFF, generator.randrange(2**16)])
    changed[place + field : place + field + 2] = struct.pack("<H", value)
    return bytes(changed)


# ------------------------------------------------------------ files


def good_files(folder):
    """A file of each kind, written by tfperf: kind -> the file, in a folder of its own where it needs others.

    Nothing in them is measured. Between two runs only dates differ, and digests and sizes of what TensorFlow writes.
    """
    import numpy as np

    from tfperf.engines.plan import Plan
    from tfperf.exports.opening import open_model
    from tfperf.exports.writing import export
    from tfperf.trials.trial import Status, Trial
    from tfperf.tuning.deploying import DEPLOYMENT, write_deployment

    files = good_measurements(folder)
    files |= {"arrays": folder / "arrays" / "arrays.npz", "net": folder / "net" / "net.keras"}
    for kind in ("arrays", "net"):
        files[kind].parent.mkdir(parents=True)
    np.savez(files["arrays"], inputs=np.ones((4, 784), "float32"))
    servable = open_model("mlp")
    servable.net.save(files["net"])
    home = export(servable, folder / "exports")
    files["manifest"] = home / "assets.extra" / "tfperf_manifest.json"
    trial = Trial(plan=Plan(engine="frozen", threads=1), batch=2, status=Status.RAN)
    files["plan"] = write_deployment(folder / "deployed", servable, trial, None, folder / "cache") / DEPLOYMENT
    return files


def good_measurements(folder):
    """A result and the outcome of a search, of made-up measurements: to the last byte the same whenever made."""
    from tfperf.engines.plan import Plan
    from tfperf.measure import Comparison, Stop
    from tfperf.measure.comparison import paired
    from tfperf.measure.results import Result, write_result
    from tfperf.search.outcome import Outcome
    from tfperf.search.question import Question
    from tfperf.trials.trial import Status, Trial

    files = {kind: folder / kind / f"{kind}.json" for kind in ("result", "outcome")}
    when = {"created": "2026-01-02T03:04:05+00:00", "environment": _environment()}
    one, a, b = _measurement("one", 1e-5), _measurement("a", 1e-5), _measurement("b", 2e-5)
    ratio = paired("a", "b", a.samples, b.samples, 0.01)
    both = Comparison(measurements=(a, b), ratios=(ratio,), rounds=len(a.seconds), margin=0.01, stopped=Stop.TIME_LIMIT)
    result = Result(name="good", measurements=(one,), comparisons=(both,), facts={"size": 1}, **when)
    write_result(files["result"], result)
    plans = [Plan(engine=engine, threads=1) for engine in ("frozen", "saved_model", "litert")]
    trials = [Trial(plan=plan, batch=1, status=Status.RAN, measurement=one, command="x") for plan in plans[:2]]
    trials = [trial.model_copy(update={"measurement": one.model_copy(update={"name": trial.name})}) for trial in trials]
    trials.append(Trial(plan=plans[2], batch=1, status=Status.CRASHED, reason="it was killed by SIGSEGV"))
    question = Question(threads=(1,), engines=("frozen", "litert", "saved_model"), memory_limit=2**30)
    outcome = Outcome(
        model="good",
        opened_as="mlp",
        question=question,
        seconds=1.0,
        trials=tuple(trials),
        winner=trials[0].name,
        **when,
    )
    write_result(files["outcome"], outcome)
    return files


def _measurement(name, seconds):
    """A measurement around some seconds, with a doubt."""
    from tfperf.measure import Conditions, Doubt, Measurement, Stop
    from tfperf.measure.memory import MemoryPeak

    return Measurement(
        name=name,
        seconds=tuple(seconds * (1 + number * 7 % 40 / 1000) for number in range(40)),
        calls_per_sample=100,
        first_call_seconds=3 * seconds,
        warm_up_seconds=(2 * seconds, 1.5 * seconds),
        precision=0.01,
        stopped=Stop.TIME_LIMIT,
        read_cost_seconds=1e-7,
        memory=MemoryPeak(resident=300 * 2**20, resident_before=200 * 2**20, device=None, of_whole_process=False),
        environment=_environment(),
        conditions=Conditions(load_before=0.1, steal_share=0.0, busy_elsewhere_share=0.01, seconds=0.05),
        doubts=(Doubt(name="short", words="the time was up early", advice="give it more time"),),
    )


def _environment():
    """A machine that nobody has."""
    from tfperf.measure import Environment

    return Environment(
        cpu="Made-up CPU @ 2.50GHz",
        cpu_features=("avx2", "avx512f"),
        logical_cores=4,
        usable_cores=2,
        memory_bytes=8 * 2**30,
        accelerators=(),
        frequency_governor=None,
        hypervisor=True,
        system="Linux 6.1.0 x86_64",
        python="3.12.0",
        packages={"tfperf": "1.0.0", "tensorflow": "2.18.0"},
        variables={"TF_CPP_MIN_LOG_LEVEL": "3"},
        git_revision="0123456789ab+",
    )


# ------------------------------------------------------------ reading


def read_all(kind, good, contents, folder, *, seconds=SECONDS):
    """Have a process read each of the contents in place of a good file; it is started again where it ends.

    Args:
        kind: of the file.
        good: the file as it was written; what stands beside it is used, and it is put back at the end.
        contents: what is read in its place.
        folder: for the files of `contents` that were not read well.
        seconds: for each.

    Returns:
        A `Reading` for each of the contents.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, content in enumerate(contents):
        paths.append(folder / f"{number}{good.suffix}")
        paths[-1].write_bytes(content)
    kept, readings = good.read_bytes(), []
    try:
        while len(readings) < len(paths):
            readings += _read_some(kind, good, paths[len(readings) :], seconds)
    finally:
        good.write_bytes(kept)
    return readings


def _read_some(kind, good, paths, seconds):
    command = [sys.executable, "-X", "faulthandler", __file__, kind, str(good), str(seconds), *map(str, paths)]
    limit = 120 + 2 * seconds * len(paths)
    done = subprocess.run(command, capture_output=True, timeout=limit, cwd=good.parent, check=False)
    told = [json.loads(line) for line in done.stdout.decode().splitlines()]
    readings = [Reading(path, *one) for path, one in zip(paths, told, strict=False)]
    if len(readings) < len(paths):
        words = done.stderr.decode(errors="replace")[-2000:]
        ended = "hangs" if "Timeout (" in words else f"the process ended with {done.returncode}"
        readings.append(Reading(paths[len(readings)], ended, words, seconds))
    return readings


def _reader(kind, good):
    """The function or command that takes a file of a kind."""
    if kind in ("result", "outcome", "manifest"):
        from tfperf.cli import main

        arguments = {
            "result": ["compare", good, good],
            "outcome": ["report", good, "--output", good.with_suffix(".html")],
            "manifest": ["verify", good.parents[1]],
        }[kind]
        return lambda: main([str(one) for one in arguments])
    if kind == "arrays":
        from tfperf.exports.arrays import read_inputs
        from tfperf.exports.signature import Signature, TensorForm

        form = TensorForm(name="inputs", shape=(None, 784), dtype="float32")
        return lambda: read_inputs(good, Signature(inputs=(form,), outputs=()))
    if kind == "net":
        from tfperf.exports.opening import open_model

        return lambda: open_model(str(good))
    from tfperf.tuning.deploying import load_deployed

    return lambda: load_deployed(good.parent).close()


def _ended(read):
    """How a reading ended, and its words."""
    from tfperf.errors import TfperfError

    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(shown):
            read()
    except TfperfError as error:
        shown.write(str(error))
        code = 2
    except SystemExit as error:
        code = error.code
    except BaseException:
        return "traceback", traceback.format_exc()[-2000:]
    else:
        code = 0
    lines = shown.getvalue().splitlines()
    if code != 2:
        return ("read" if code in (0, 1, 3) and not lines else f"exit code {code}"), "\n".join(lines)
    return ("refused" if len(lines) == 1 and len(lines[0]) < LONGEST else "not one line"), "\n".join(lines)[:LONGEST]


def _main(kind, good, seconds, *paths):
    good, read = Path(good), None
    read = _reader(kind, good)
    if kind in ("manifest", "net", "plan"):
        from tfperf.importing import load_tensorflow

        load_tensorflow()
    _ended(read)  # loads what reading needs
    size = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
    for path in map(Path, paths):
        good.write_bytes(path.read_bytes())
        began = time.monotonic()
        faulthandler.dump_traceback_later(float(seconds), exit=True)
        ended, words = _ended(read)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps([ended, words, time.monotonic() - began]), flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if Path(place) != Path(__file__).parent]
    _main(*sys.argv[1:])
