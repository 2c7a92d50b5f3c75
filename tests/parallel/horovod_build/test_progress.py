"""How far a build is."""

import rich

from tfperf.parallel.horovod_build.progress import showing_progress

STEP = "  [{:3d}%] Building CXX object a/b/CMakeFiles/x.dir/file{}.cc.o"


def test_elsewhere_it_is_a_line_for_each_tenth(capsys):
    seconds = iter(range(0, 2000, 10))
    with showing_progress(terminal=False, clock=lambda: next(seconds)) as on_line:
        for percent in range(1, 101):
            on_line(STEP.format(percent, percent))
            on_line("  g++ -c file.cc")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(tenth) for tenth in range(10, 101, 10)]
    assert lines[0] == "   10 %    10 s  file10.cc"


def test_tenths_that_are_leapt_over_are_not_made_up(capsys):
    with showing_progress(terminal=False, clock=lambda: 0.0) as on_line:
        for percent in (5, 37, 38, 99):
            on_line(STEP.format(percent, percent))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["30", "90"]


def test_on_a_terminal_it_is_a_bar_that_leaves_nothing(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(rich, "_console", None)  # one that another test made knows of no terminal
    with showing_progress(terminal=True) as on_line:
        on_line(STEP.format(42, 7))
    out = capsys.readouterr().out
    assert "42%" in out
    assert "file7.cc" in out
