"""Plans of one net are started side by side; whatever a converter does, only its own plan fails."""

import contextlib
import threading
import time

import psutil
import pytest

from tfperf.engines import Plan
from tfperf.exports.opening import open_model
from tfperf.trials import host
from tfperf.trials.launching import Launcher
from tfperf.trials.process import Origin, store_arrays
from tfperf.trials.trial import Status, TrialError

HONEST, EQUAL = Plan(engine="honest"), Plan(engine="equal")


@pytest.fixture
def launcher(dense, planted, tmp_path):
    """A function from limits to a launcher for the dense net, whose conversion for most engines is known."""
    servable, origin, cache = dense
    with contextlib.ExitStack() as stack:

        def launcher(**options):
            options = {"cache": cache, "deadline": 120.0} | options
            return stack.enter_context(Launcher(servable, options.pop("origin", origin), tmp_path, **options))

        yield launcher


def answers(launched, planted, dense):
    """Whether a process answers as the net does."""
    process, _ = launched
    servable, _, _ = dense
    arrays = servable.signature.random_inputs(planted.batch)
    inputs = store_arrays(planted.place / "given.npz", arrays)
    reference = store_arrays(planted.place / "taken.npz", servable.reference(arrays))
    return process.check(planted.batch, inputs, reference).agreement.passed


def why_not(launcher, engine):
    """Status and reason of a plan that cannot be started."""
    with pytest.raises(TrialError) as told:
        launcher.start(Plan(engine=engine))
    return told.value.status, str(told.value)


def test_processes_run_until_they_are_ended_or_all_are(launcher, planted, dense, within_seconds):
    with launcher() as several:
        first, loaded = several.start(HONEST)
        assert loaded.proof == {"precision": "4 of 4 arrays in float32", "threads": "1, as all of it is Python"}
        assert loaded.size > 500
        second = several.start(Plan(engine="forker"))
        assert answers(second, planted, dense)
        several.end(first)
        assert within_seconds(lambda: len(planted.running()) == 2)
        assert answers(second, planted, dense)
    assert planted.nothing_left()
    assert several.closed


def test_what_is_missing_or_refused_starts_no_process(launcher, monkeypatch, planted):
    several = launcher()
    monkeypatch.setattr("tfperf.trials.launching.missing", lambda engine: "pip install it")
    assert why_not(several, "honest") == (Status.MISSING, "pip install it")
    monkeypatch.undo()
    with pytest.raises(TrialError, match=r"^expected a precision of honest \(float32\)\. Received: bfloat16$") as told:
        several.start(Plan(engine="honest", precision="bfloat16"))
    assert told.value.status is Status.REFUSED
    words = "no_module: ModuleNotFoundError: No module named 'no_such_module'"
    assert why_not(several, "no_module") == (Status.REFUSED, words)
    assert planted.left() == []


def test_a_plan_that_cannot_be_loaded_leaves_no_process(launcher, planted):
    several = launcher(deadline=1.5)
    words = "hang_in_build: no answer within 1.5 s; its process was ended"
    assert why_not(several, "hang_in_build") == (Status.TIMED_OUT, words)
    assert planted.left() == []


def test_a_converter_that_dies_costs_its_own_plan_alone(launcher, planted, dense, tmp_path):
    """It outlives the thread that started it, though Linux takes the end of that one for the end of the parent."""
    several = launcher(cache=tmp_path / "cache")
    words = "segfault_in_convert, while it was converted: its process was killed by SIGSEGV"
    assert why_not(several, "segfault_in_convert") == (Status.CRASHED, words)
    assert planted.left() == []
    opening = threading.Thread(target=several.can_open)
    opening.start()
    opening.join()
    converter = several._converter
    assert answers(several.start(HONEST), planted, dense)
    assert several._converter is converter
    converter._deadline = 1.0
    words = "hang_in_convert, while it was converted: no answer within 1 s; its process was ended"
    assert why_not(several, "hang_in_convert") == (Status.TIMED_OUT, words)
    assert several._converter is None
    assert len(planted.running()) == 1  # the process of the plan that runs
    assert [path.name.split("-")[0] for path in (tmp_path / "cache").glob("[!.]*")] == ["planted"]


def test_what_a_killed_converter_leaves_is_in_the_scratch_folder(launcher, planted, tmp_path):
    several = launcher(cache=tmp_path / "cache")
    assert why_not(several, "segfault_in_convert")[0] is Status.CRASHED
    assert list(planted.temporary.iterdir()) == []
    assert len(list((tmp_path / "temporary").glob("left-*"))) == 1


KEEPS = """
import pathlib, tempfile
import keras

def build():
    units = int((pathlib.Path(tempfile.gettempdir()) / "units").read_text())
    return keras.Sequential([keras.Input((8,), name="x"), keras.layers.Dense(units, name="y")])
"""


def test_a_model_finds_what_it_keeps_among_temporary_files(planted, tmp_path, monkeypatch):
    """TensorFlow Hub keeps there what it has downloaded."""
    monkeypatch.setattr("tempfile.tempdir", None)
    (planted.temporary / "units").write_text("4")
    (tmp_path / "keeps.py").write_text(KEEPS)
    model = f"{tmp_path / 'keeps.py'}:build"
    servable = open_model(model)
    with Launcher(servable, Origin(model), tmp_path, cache=tmp_path / "cache") as several:
        for engine in ("honest", "eager"):  # the one is converted, the other opens the model itself
            several.start(Plan(engine=engine))


def test_whatever_is_raised_in_this_process_is_an_answer(launcher, monkeypatch):
    def build(servable, plan):
        raise TypeError("no such\n argument")

    monkeypatch.setattr(host, "build", build)
    assert why_not(launcher(graph_only=True), "eager") == (Status.REFUSED, "eager: TypeError: no such argument")


def test_while_one_is_compiled_others_are_converted(launcher, planted, dense, tmp_path, within_seconds):
    several = launcher(cache=tmp_path / "cache")
    assert several.can_open()
    told = []
    compiling = threading.Thread(target=lambda: told.append(why_not(several, "hang_in_compile")))
    compiling.start()
    assert within_seconds(lambda: planted.started() != [])  # which the compiler has
    assert answers(several.start(HONEST), planted, dense)
    assert told == []
    several.close()
    compiling.join(30)  # of 120
    assert told == [(Status.CRASHED, "hang_in_compile, while it was compiled: its process was ended")]
    assert planted.nothing_left()
    assert [path.name.split("-")[0] for path in (tmp_path / "cache").iterdir() if path.suffix != ".part"] == ["planted"]


def test_what_was_converted_before_needs_no_converter(launcher, planted, dense):
    several = launcher(origin=Origin("no model"))
    assert answers(several.start(HONEST), planted, dense)
    assert several._converter is None


def test_a_model_that_cannot_be_opened_again_refuses_conversions(launcher, planted, tmp_path, monkeypatch):
    several = launcher(origin=Origin("no/such:model"), cache=tmp_path / "cache")
    status, words = why_not(several, "honest")
    assert status is Status.REFUSED
    assert words.startswith("honest, while it was converted: expected ")
    assert several._converter is None
    monkeypatch.setattr("tfperf.trials.launching.Child", pytest.fail)  # it is not tried again
    assert not several.can_open()
    assert why_not(several, "honest") == (status, words)
    assert planted.left() == []


def test_closing_tells_who_waits(launcher, planted):
    several = launcher(deadline=120.0)
    told = {}

    def start(engine):
        try:
            several.start(Plan(engine=engine))
        except TrialError as error:
            told[engine] = str(error)

    threads = [threading.Thread(target=start, args=[engine]) for engine in ("hang_in_build", "hang_in_convert")]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    while len(several._hosts) < 2 and time.monotonic() - began < 60:
        time.sleep(0.01)
    several.close()
    for thread in threads:
        thread.join(30)  # of 120
    assert told == {
        "hang_in_build": "hang_in_build: its process was ended",
        "hang_in_convert": "hang_in_convert, while it was converted: its process was ended",
    }
    assert planted.left() == []
    for engine in ("honest", "hang_in_convert"):
        with pytest.raises(TrialError, match=r"its process was ended$"):
            several.start(Plan(engine=engine))
    assert planted.left() == []


def test_a_second_ctrl_c_while_all_are_ended_leaves_none(launcher, planted, monkeypatch):
    several = launcher()
    hosts = [several.start(plan)[0].host for plan in (HONEST, EQUAL, HONEST)]
    with monkeypatch.context() as patch:
        patch.setattr(host.Child, "close", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            several.close()
    assert not any(one.alive for one in hosts)
    assert planted.nothing_left()
    for one in hosts:
        one.close()


def test_others_stand_still_while_one_is_measured(launcher, planted, dense, within_seconds):
    several = launcher()
    (measured, _), (other, _) = several.start(HONEST), several.start(Plan(engine="spinner_child"))
    others = [psutil.Process(other.host.pid), *planted.started()]
    alone = psutil.Process(measured.host.pid)
    later = []

    def still():
        return {one.status() for one in others} == {psutil.STATUS_STOPPED}

    starting = threading.Thread(target=lambda: later.append(several.start(EQUAL)))
    with contextlib.suppress(ZeroDivisionError), several.quiet(measured):
        assert within_seconds(still)
        assert alone.status() != psutil.STATUS_STOPPED
        assert measured.host.ask("memory")
        before = several._hosts.copy()
        starting.start()
        assert within_seconds(lambda: len(several._hosts) > len(before))
        (new,) = several._hosts - before
        assert within_seconds(lambda: psutil.Process(new.pid).status() == psutil.STATUS_STOPPED)
        raise ZeroDivisionError
    assert within_seconds(lambda: not any(one.status() == psutil.STATUS_STOPPED for one in others))
    starting.join(60)
    assert answers(later[0], planted, dense)
    with several.quiet(later[0][0]):
        assert within_seconds(still)
        several.end(other)  # as another thread may
    assert within_seconds(lambda: len(planted.running()) == 2)
