"""How far a tuning is, as it is shown."""

import json

import pytest
from rich.console import Console

from tfperf.cli.tune_display import SHOWN, Display
from tfperf.engines.plan import Plan
from tfperf.measure import Progress
from tfperf.trials.trial import Status, Trial


@pytest.fixture
def tried(measured):
    """A function that makes a trial."""

    def tried(engine, seconds=None, **changes):
        trial = Trial(plan=Plan(engine=engine), batch=1, status=Status.RAN if seconds else Status.REFUSED)
        found = measured(trial.name, [seconds] * 20) if seconds else None
        return trial.model_copy(update={"measurement": found, "reason": "" if seconds else "it cannot"} | changes)

    return tried


def picture(display):
    console = Console(width=160, force_terminal=False, record=True, file=None, quiet=False)
    with console.capture() as shown:
        console.print(display._picture())
    return shown.get()


def test_each_trial_is_a_line_of_json(tried, capsys):
    with Display() as display:
        display.phase("trying the engines")
        display.looked(ran := tried("honest", 2e-3), ran, 1)
        display.looked(tried("onnx"), ran, 0)
        display.measuring(Progress(3, 1.0, 2.0, 0.05))
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"trial": "honest, batch 1", "status": "ran", "seconds": 2e-3, "low": 2e-3, "high": 2e-3}
    assert second == {"trial": "onnx, batch 1", "status": "refused", "reason": "it cannot"}


def test_the_picture_says_what_is_known(tried):
    display = Display()
    assert "opening the model" in picture(display)
    display.phase("trying the engines")
    ran = tried("honest", 2e-3)
    for place in range(SHOWN + 2):
        display.looked(tried(f"engine{place}"), ran, 7)
    shown = picture(display)
    assert "trying the engines, about " in shown
    assert f"{SHOWN + 2} refused" in shown
    assert "best so far: honest, batch 1: 2 ms a call" in shown
    assert "engine1," not in shown
    assert all(f"engine{place}, batch 1" in shown for place in range(2, SHOWN + 2))
    display.measuring(Progress(3, 1.0, 3.0, 0.052))
    assert "known to 5.2%, at most 2 s more" in picture(display)
    display.phase("final: measuring 3 in turns")
    assert "known to" not in picture(display)


def test_no_markup_of_others_is_read(tried):
    display = Display()
    display.looked(tried("[bold]a[/bold]", reason="[red]no[/red] such [link=x]"), None, 0)
    shown = picture(display)
    assert "[bold]a[/bold], batch 1" in shown
    assert "[red]no[/red] such [link=x]" in shown
