"""Questions and answers in lines of JSON: each wait has its end."""

import sys

import pytest

from tfperf.processes import PIPE, ChildProcess, Dialogue, Patience

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def child(program):
    return ChildProcess([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE)


def test_an_answer_comes_to_each_question():
    with child(ECHO) as process:
        dialogue = Dialogue(process)
        for question in ({"x": [1, None]}, "é\n", "a" * 10**6):
            assert dialogue.ask(question, Patience(30)) == question


def test_one_who_does_not_read_is_not_waited_for():
    with child("import time; time.sleep(600)") as process, pytest.raises(TimeoutError):
        Dialogue(process).ask("a" * 10**6, Patience(0.3))


def test_one_who_stops_in_a_line_is_not_waited_for():
    program = "import sys, time; sys.stdout.write('[1,'); sys.stdout.flush(); time.sleep(600)"
    with child(program) as process, pytest.raises(TimeoutError):
        Dialogue(process).listen(Patience(0.3))


@pytest.mark.parametrize("program", ["pass", "import os, time; os.close(1); time.sleep(600)", "print('[')"])
def test_one_who_answers_no_more_is_told(program):
    with child(program) as process, pytest.raises((EOFError, ValueError)):
        Dialogue(process).ask(1, Patience(30))


def test_lines_that_come_together_are_told_one_by_one():
    with child("print('1\\n2\\n[3]')") as process:
        dialogue = Dialogue(process)
        assert [dialogue.listen(Patience(30)) for _ in range(3)] == [1, 2, [3]]


def test_a_look_may_end_the_waiting():
    def look(patience):
        raise ZeroDivisionError

    with child("import time; time.sleep(600)") as process, pytest.raises(ZeroDivisionError):
        Dialogue(process).listen(Patience(30), look)
