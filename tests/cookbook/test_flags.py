"""The flags all recipes share."""

import pytest

from tfperf.cookbook.catalog import Header
from tfperf.cookbook.flags import QUICK_TIME_LIMIT, TIME_LIMIT, Flag, parse_flags, result_file

HEADER = Header("Why?", "000, h", "a claim", "nowhere", "nothing", "1 s", ("f",), ("--batch 2: slower.",))
OWN = {
    "pet": Flag("cat", "pet", choices=("cat", "cow")),
    "epochs": Flag(2, "epochs"),
    "data": Flag("digits", "data"),
    "rate": Flag(0.1, "rate"),
    "two_words": Flag(1, "x"),
}


def parse(*arguments):
    return parse_flags("x", HEADER, batch=32, model="mlp", own=OWN, arguments=list(arguments))


def test_defaults():
    flags = parse()
    assert (flags.quick, flags.batch, flags.seed, flags.json) == (False, 32, 0, result_file("x"))
    assert (flags.epochs, flags.data, flags.rate, flags.two_words) == (2, "digits", 0.1, 1)
    assert flags.time_limit == TIME_LIMIT


def test_a_recipe_on_any_net_takes_a_model():
    assert (parse().model, parse().inputs) == ("mlp", None)
    assert parse("--model", "my.py:build").model == "my.py:build"


def test_a_recipe_on_its_own_net_has_no_such_flag(capsys):
    with pytest.raises(SystemExit):
        parse_flags("x", HEADER, batch=1, model=None, own={}, arguments=["--model", "mlp"])
    assert "--model" in capsys.readouterr().err


def test_help_shows_the_header(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_:
        parse("--help")
    shown = capsys.readouterr().out
    assert exit_.value.code == 0
    for words in (
        "Why?",
        "Source: 000, h",
        "Claim: a claim",
        "Holds not: nowhere",
        "Shows: f",
        "Try: --batch 2: slower.",
    ):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_quick_is_quick_unless_told_otherwise():
    assert parse("--quick").time_limit == QUICK_TIME_LIMIT
    assert parse("--quick", "--time-limit", "7").time_limit == 7


def test_comparisons_may_take_longer_than_a_limit_that_nobody_gave():
    given = [[], ["--quick"], ["--time-limit", "7"], ["--quick", "--time-limit", "7"]]
    assert [parse(*arguments).patient for arguments in given] == [True, False, False, False]


def test_own_flags_have_the_type_of_their_default():
    flags = parse("--epochs", "3", "--data", "mnist", "--rate", "0.5", "--two-words", "4")
    assert (flags.epochs, flags.data, flags.rate, flags.two_words) == (3, "mnist", 0.5, 4)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--batch", "0"],
        ["--batch", "1.5"],
        ["--seed", "-1"],
        ["--time-limit", "0"],
        ["--time-limit", "nan"],
        ["--time-limit", "inf"],
        ["--epochs", "none"],
        ["--rate", "-1"],
        ["--bat", "3"],
        ["extra"],
        ["--json"],
        ["--json", "."],
        ["--json", "/dev/null/x.json"],
        ["--seed", str(2**32)],
        ["--pet", "dog"],
    ],
)
def test_a_wrong_flag_is_one_line_and_2(capsys, arguments):
    with pytest.raises(SystemExit) as exit_:
        parse(*arguments)
    assert exit_.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
