"""The whole examination: its order, its exits, and that nothing it meets is a traceback."""

import subprocess
import sys
import time

import psutil
import pytest

from tfperf.doctor import Finding, State, examination, examine, is_fit
from tfperf.doctor.examination import Check, examine_each

FINE = Finding("x", State.OK, "fine")


def failing(error):
    def take():
        raise error

    return take


@pytest.fixture
def quick(monkeypatch):
    """Each check, but those of TensorFlow, replaced by one that finds its own name."""
    for name in ("python", "packages", "cpu", "machine", "engines", "horovod", "spark", "data"):
        monkeypatch.setattr(examination, f"examine_{name}", lambda name=name: [Finding(name, State.OK, "")])


@pytest.mark.parametrize(("needed", "state"), [(True, State.UNFIT), (False, State.NOTE)])
@pytest.mark.parametrize("error", [ImportError("no [bold]x\x1b"), RecursionError(), KeyError("k"), UnicodeError("u")])
def test_a_look_that_fails_is_a_finding_and_the_others_go_on(needed, state, error):
    checks = [Check("broken", failing(error), needed), Check("fine", lambda: [FINE], needed=True)]
    broken, fine = examine_each(checks, lambda _: None)
    assert (broken.subject, broken.state) == ("broken", state)
    assert broken.found.startswith(f"cannot be examined: {type(error).__name__}:")
    assert fine == FINE


def test_what_interrupts_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        examine_each([Check("x", failing(KeyboardInterrupt()), needed=False)], lambda _: None)


def test_it_tells_what_it_looks_at_before_it_looks():
    told = []

    def take():
        assert told[-1] == "one"
        return []

    examine_each([Check("one", take, needed=True), Check("two", list, needed=True)], told.append)
    assert told == ["one", "two"]


def test_findings_come_in_the_order_of_importance(quick, probing_of, printed, well):
    findings = examine(tensorflow=probing_of(printed(**well().steps)))
    subjects = [finding.subject for finding in findings if finding.subject != "NVIDIA card"]
    assert subjects == [
        "python", "packages", "TensorFlow", "Keras", "XLA", "GPU",
        "cpu", "machine", "engines", "horovod", "spark", "data",
    ]  # fmt: skip


def test_a_crashing_tensorflow_is_not_fit(quick, probing_of):
    findings = examine(tensorflow=probing_of("os.kill(os.getpid(), 11)"))
    assert not is_fit(findings)
    assert any("SIGSEGV" in finding.found for finding in findings)


def test_a_report_that_makes_no_sense_is_a_finding(quick, probing_of, printed):
    findings = examine(tensorflow=probing_of(printed(tensorflow={}, keras={}, gpus={"gpus": 7}, xla={})))
    broken = {finding.subject: finding.state for finding in findings if "cannot be examined" in finding.found}
    assert broken == {"TensorFlow": State.UNFIT, "GPU": State.NOTE}


def test_tensorflow_is_tried_while_the_rest_is_looked_at(quick, monkeypatch, probing_of, tmp_path):
    number = tmp_path / "number"

    def look():
        until = time.monotonic() + 60
        while not (number.exists() and number.read_text()):
            assert time.monotonic() < until
            time.sleep(0.02)
        assert psutil.pid_exists(int(number.read_text()))
        raise KeyboardInterrupt

    monkeypatch.setattr(examination, "examine_data", look)
    with pytest.raises(KeyboardInterrupt):
        examine(tensorflow=probing_of(f"open({str(number)!r}, 'w').write(str(os.getpid()))", "time.sleep(600)"))
    assert not psutil.pid_exists(int(number.read_text()))


def test_importing_the_room_loads_the_standard_library_alone():
    code = (
        "import sys; before = set(sys.modules); import tfperf.doctor\n"
        "tops = {name.partition('.')[0] for name in sys.modules.keys() - before}\n"
        "print(sorted(tops - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "['tfperf']\n"
