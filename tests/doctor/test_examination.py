"""The whole examination: its order, its exits, and that nothing it meets is a traceback."""

import subprocess
import sys

import pytest

from tfperf.doctor import Finding, State, examination, examine, is_fit
from tfperf.doctor.examination import Look, taken

FINE = Finding("x", State.OK, "fine")


def failing(error):
    def take():
        raise error

    return take


@pytest.fixture
def quick(monkeypatch):
    """Each look, but those at TensorFlow, replaced by one that finds its own name."""
    for name in ("python", "packages", "cpu", "machine", "engines", "horovod", "spark", "data"):
        monkeypatch.setattr(getattr(examination, name), "look", lambda name=name: [Finding(name, State.OK, "")])


@pytest.mark.parametrize(("needed", "state"), [(True, State.UNFIT), (False, State.NOTE)])
@pytest.mark.parametrize("error", [ImportError("no [bold]x\x1b"), RecursionError(), KeyError("k"), UnicodeError("u")])
def test_a_look_that_fails_is_a_finding_and_the_others_go_on(needed, state, error):
    looks = [Look("broken", failing(error), needed), Look("fine", lambda: [FINE], needed=True)]
    broken, fine = taken(looks, lambda _: None)
    assert (broken.subject, broken.state) == ("broken", state)
    assert broken.found.startswith(f"cannot be examined: {type(error).__name__}:")
    assert fine == FINE


def test_what_interrupts_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        taken([Look("x", failing(KeyboardInterrupt()), needed=False)], lambda _: None)


def test_it_tells_what_it_looks_at_before_it_looks():
    told = []

    def take():
        assert told[-1] == "one"
        return []

    taken([Look("one", take, needed=True), Look("two", list, needed=True)], told.append)
    assert told == ["one", "two"]


def test_findings_come_in_the_order_of_importance(quick, trial_of, printed, well):
    findings = examine(trial=trial_of(printed(**well().steps)))
    subjects = [finding.subject for finding in findings if finding.subject != "NVIDIA card"]
    assert subjects == [
        "python", "packages", "TensorFlow", "Keras", "XLA", "GPU",
        "cpu", "machine", "engines", "horovod", "spark", "data",
    ]  # fmt: skip


def test_a_crashing_tensorflow_is_not_fit(quick, trial_of):
    findings = examine(trial=trial_of("os.kill(os.getpid(), 11)"))
    assert not is_fit(findings)
    assert any("SIGSEGV" in finding.found for finding in findings)


def test_a_report_that_makes_no_sense_is_a_finding(quick, trial_of, printed):
    findings = examine(trial=trial_of(printed(tensorflow={}, keras={}, gpus={"gpus": 7}, xla={})))
    broken = {finding.subject: finding.state for finding in findings if "cannot be examined" in finding.found}
    assert broken == {"TensorFlow": State.UNFIT, "GPU": State.NOTE}


def test_tensorflow_is_tried_while_the_rest_is_looked_at(quick, monkeypatch, trial_of):
    trial = trial_of("time.sleep(600)", deadline=600.0)

    def look():
        assert trial._process.poll() is None
        raise KeyboardInterrupt

    monkeypatch.setattr(examination.data, "look", look)
    with pytest.raises(KeyboardInterrupt):
        examine(trial=trial)
    assert trial._process.poll() == -9


def test_importing_the_room_loads_the_standard_library_alone():
    code = (
        "import sys; before = set(sys.modules); import tfperf.doctor; import tfperf.doctor.printing\n"
        "tops = {name.partition('.')[0] for name in sys.modules.keys() - before}\n"
        "print(sorted(tops - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "['tfperf']\n"
