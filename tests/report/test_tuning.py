"""What a search found, in words: the answer, tables for terminals, Markdown, CSV."""

import ast
import csv
import io
import re
import shlex

import pytest
from markdown_it import MarkdownIt
from rich.console import Console
from typer.testing import CliRunner

from tfperf.cli.app import app
from tfperf.errors import ResultFileError
from tfperf.measure import Verdict
from tfperf.report import tuning
from tfperf.report.tuning_facts import Facts
from tfperf.report.tuning_words import (
    commands,
    error_words,
    figures_of,
    percent_words,
    tolerance_words,
    trust_words,
)
from tfperf.search.question import MEMORY_SHARE
from tfperf.trials.trial import Status

INTERVAL = r"[\d.]+x \[[\d.]+, [\d.]+\]"


def shown(table, width=120):
    screen = io.StringIO()
    Console(width=width, file=screen, highlight=False).print(table)
    return screen.getvalue()


@pytest.mark.parametrize(
    ("case", "pattern"),
    [
        (
            "one_winner",
            (
                rf"litert, 1 thread: 8\.\d+ us a call, {INTERVAL} of tf\.function, {INTERVAL} of model\(x\), "
                rf"{INTERVAL} of predict, same answers to 9e-07"
            ),
        ),
        (
            "equals",
            (
                rf"onnx, 1 thread: 10\.\d+ us a call, {INTERVAL} of model\(x\), same answers to 9e-07, "
                r"not distinguishable from: litert, 1 thread"
            ),
        ),
        (
            "yours_wins",
            (
                r"What you have is the best already: tf\.function, 1 thread: 100\.\d us a call, "
                rf"{INTERVAL} of model\(x\), same answers to 9e-07"
            ),
        ),
        (
            "nothing_ran",
            (
                r"No plan ran \(1 not installed, 1 refused, 1 wrong answers, 1 crashed, 1 timed out, "
                r"1 out of memory, 1 not tried\)"
            ),
        ),
        (
            "interrupted",
            (
                r"Best so far, interrupted, not confirmed: onnx, 1 thread: 100\.\d us a call, "
                r"about 10(\.\d)?x of model\(x\) \(measured separately\), same answers to 9e-07"
            ),
        ),
        (
            "pareto",
            (
                rf"xla_aot, 1 thread: 6\.\d+ us a call, 9 MiB on disk, 100 MiB of memory, {INTERVAL} of model\(x\), "
                "same answers to 9e-07"
            ),
        ),
        (
            "throughput",
            (
                r"Best so far, the time was up: onnx, bfloat16, 2 threads, batch 256: \d\d\d,\d\d\d examples/s, "
                rf"1\.\d+ ms a call, {INTERVAL} of model\(x\) \(batch 256\), error 0\.004, "
                r"accuracy 98\.3 % \(98\.45 % in float32\)"
            ),
        ),
    ],
)
def test_the_answer_in_a_sentence(made_up, case, pattern):
    assert re.fullmatch(pattern, tuning.answer(made_up(case)))


@pytest.mark.parametrize("default", ["predict", "eager", "graph"])
def test_speed_ups_are_those_that_the_search_measured_side_by_side(made_up, default):
    outcome = made_up("one_winner")
    name = next(name for name in outcome.defaults if name.startswith(default))
    facts = Facts(outcome)
    ratio = outcome.speed_up(name)
    assert facts.side_by_side(facts.trials[name], facts.best) == ratio
    assert ratio == outcome.confirmation.ratio(name, outcome.winner)
    assert f"{ratio.estimate:.3g}" in tuning.answer(outcome) or f"{ratio.estimate:.0f}" in tuning.answer(outcome)


def test_a_ratio_that_is_no_gain_says_so(made_up, monkeypatch):
    outcome = made_up("one_winner")
    genuine = type(outcome).speed_up
    for verdict in (Verdict.SLOWER, Verdict.NO_DIFFERENCE, Verdict.TOO_NOISY):

        def told(self, default, verdict=verdict):
            return genuine(self, default).model_copy(update={"verdict": verdict})

        monkeypatch.setattr(type(outcome), "speed_up", told)
        assert f"of tf.function ({verdict})" in tuning.answer(outcome)


def test_a_default_among_the_equals_is_called_yours(made_up):
    outcome = made_up("equals")
    words = tuning.answer(outcome.model_copy(update={"equals": outcome.defaults}))
    assert words.endswith("not distinguishable from: model(x), 1 thread, which you have")


def test_what_ran_and_was_too_slow_is_told_from_what_did_not_run(made_up):
    outcome = made_up("interrupted").model_copy(update={"winner": None})
    assert tuning.answer(outcome) == (
        "No plan that ran keeps to the limits before it was interrupted (2 ran, 1 not tried)"
    )
    nothing = made_up("nothing_ran").model_copy(update={"trials": (), "defaults": (), "ended": "time limit"})
    assert tuning.answer(nothing) == "No plan ran before the time was up"


def test_a_size_comes_before_the_latency(made_up):
    outcome = made_up("one_winner")
    asked = outcome.question.model_copy(update={"objectives": ("size",)})
    words = tuning.answer(outcome.model_copy(update={"question": asked}))
    assert re.match(r"litert, 1 thread: 3 MiB on disk, 8\.\d+ us a call, ", words)
    none = outcome.trials[1].model_copy(update={"agreement": outcome.best.agreement.model_copy(
        update={"relative_error": 0.0}
    )})  # fmt: skip
    yours = outcome.model_copy(
        update={"question": asked, "winner": none.name, "trials": (*outcome.trials[:1], none, *outcome.trials[2:])}
    )
    assert "nothing on disk, " in tuning.answer(yours)
    assert "the very same answers" in tuning.answer(yours)


@pytest.mark.parametrize(
    ("error", "words"),
    [(None, "not finite"), (0.0, "0"), (8.01e-7, "9e-07"), (1e-6, "1e-06"), (0.02, "0.02"), (1.2, "2")],
)
def test_an_error_is_never_told_smaller_than_it_is(error, words):
    assert error_words(error) == words


@pytest.mark.parametrize(("share", "words"), [(None, "-"), (1.0, "100 %"), (0.99999, "99.99 %"), (0.57, "57 %")])
def test_a_share_is_never_told_larger_than_it_is(share, words):
    assert percent_words(share) == words


def test_finalists_and_defaults_are_in_the_summary_best_first(made_up):
    lines = shown(tuning.summary_table(made_up("one_winner"))).splitlines()
    names = [re.split("  +", line)[0] for line in lines[1:7]]
    assert names == ["litert, 1 thread", "onnx, 1 thread", "frozen, 1 thread", "tf.function", "model(x)", "predict"]
    assert lines[1].rstrip().endswith("best")
    assert all(line.rstrip().endswith("yours") for line in lines[4:7])
    assert re.search(rf"47,\d\d\d +{INTERVAL} +9e-07  3 MiB  100 MiB", lines[2])
    text = " ".join(" ".join(lines).split())
    assert (
        "Speed-ups are against model(x), with 99 % intervals. Measured again, each in a fresh process: litert," in text
    )
    assert "'About'" not in text
    assert "as a share of the largest answer of the same output" in text
    assert "doubt: the last third is 4 % slower than the first: let the machine cool" in text


@pytest.mark.parametrize("case", ["one_winner", "equals", "pareto", "throughput"])
@pytest.mark.parametrize("table", [tuning.summary_table, tuning.trial_table])
@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_breaks_no_word_and_no_figure(made_up, case, table, width):
    outcome = made_up(case)
    facts = Facts(outcome)
    text = shown(table(outcome), width)
    assert max(map(len, text.splitlines())) <= width
    words = {word for trial in facts.finalists for word in facts.label(trial).split()}
    intervals = {word for trial in facts.finalists for word in figures_of(facts, trial).latency.split()}
    assert words | intervals <= set(text.split())


def test_a_narrow_terminal_leaves_out_what_nobody_asked_for(made_up):
    outcome = made_up("one_winner")
    narrow, wide = shown(tuning.summary_table(outcome), 80), shown(tuning.summary_table(outcome), 140)
    assert "too narrow for more columns: examples/s, memory, disk" in narrow
    assert "speed-up [99 %]" in narrow
    assert "yours" in narrow
    assert "too narrow" not in wide
    for asked, column in (("throughput", "examples/s"), ("size", "disk"), ("memory", "memory")):
        question = outcome.question.model_copy(update={"objectives": (asked,)})
        (
            header,
            *_,
        ) = shown(tuning.summary_table(outcome.model_copy(update={"question": question})), 90).splitlines()
        assert column in header


def test_separate_looks_are_never_told_as_a_measured_ratio(made_up):
    text = shown(tuning.summary_table(made_up("interrupted")))
    assert re.search(r"onnx.*about 10(\.\d)?x +9e-07", text)
    assert "'About' marks a speed-up of two that were measured separately, not side by side." in " ".join(text.split())
    assert "Not confirmed" in text


def test_throughput_is_compared_at_the_best_batch_size_of_each_default(made_up):
    facts = Facts(made_up("throughput"))
    assert facts.baseline.name == "eager, batch 256"
    told = facts.side_by_side(facts.baseline, facts.best).estimate
    assert told == pytest.approx(facts.separate_looks(facts.baseline, facts.best), rel=0.02)


def test_a_default_that_took_turns_counts_before_one_that_was_only_looked_at(made_up):
    outcome, left_out = made_up("throughput"), "eager, batch 256"
    turns = outcome.confirmation
    told = tuple(ratio for ratio in turns.ratios if left_out not in {ratio.baseline, ratio.candidate})
    measured = tuple(one for one in turns.measurements if one.name != left_out)
    fewer = turns.model_copy(update={"measurements": measured, "ratios": told})
    changed = outcome.model_copy(update={"confirmation": fewer})
    assert [trial.name for trial in Facts(changed).defaults] == ["eager, batch 1"]
    assert "measured separately" not in tuning.answer(changed)


def test_a_trial_that_failed_after_its_first_look_is_no_finalist(made_up):
    outcome = made_up("one_winner")
    trials = [
        trial.model_copy(update={"status": Status.CRASHED}) if trial.plan.engine == "onnx" else trial
        for trial in outcome.trials
    ]
    facts = Facts(outcome.model_copy(update={"trials": tuple(trials)}))
    assert "onnx" not in [trial.plan.engine for trial in facts.finalists]
    assert figures_of(facts, next(trial for trial in trials if trial.status is Status.CRASHED)).latency == "-"


def test_largest_answers_are_told_of_where_they_had_to_be_the_same(made_up):
    outcome = made_up("one_winner")
    asked = outcome.model_copy(update={"question": outcome.question.model_copy(update={"same_top1": True})})
    passes = "Answers pass with an error of at most 0.0001"
    assert tolerance_words(outcome).startswith(f"{passes}. The error is ")
    assert tolerance_words(asked).startswith(f"{passes} and with the same largest answer in every row. The error is ")


def test_every_trial_is_in_its_table_with_its_reason(made_up, outcomes):
    outcome = made_up("one_winner")
    text = " ".join(shown(tuning.trial_table(outcome), width=250).split())
    for trial in outcome.trials:
        assert Facts(outcome).label(trial) in text
        if trial.status is not Status.RAN:
            assert f"{Facts(outcome).label(trial)}: {trial.status}: {trial.reason}" in text
    assert text.index("litert") < text.index("onnx") < text.index("predict") < text.index("not installed")


def test_a_long_table_is_cut_and_says_so(made_up):
    text = shown(tuning.trial_table(made_up("one_winner"), limit=4), width=250)
    assert "tf.function" in text
    assert "predict  " not in text
    assert "3 more: 2 ran, 1 not tried" in text


def test_names_are_no_markup_for_a_terminal(made_up):
    outcome = made_up("equals")
    plan = outcome.best.plan.model_copy(update={"engine": "[red]x[/red]"})
    trials = (outcome.trials[0], outcome.best.model_copy(update={"plan": plan}), outcome.trials[2])
    changed = outcome.model_copy(
        update={"trials": trials, "winner": trials[1].name, "final": None, "confirmation": None}
    )
    assert "[red]x[/red], 1 thread" in shown(tuning.summary_table(changed))
    assert "[red]x[/red], 1 thread" in shown(tuning.trial_table(changed))


def test_doubts_are_told_once_for_each_kind(made_up, measured):
    from tfperf.measure import Doubt

    outcome = made_up("equals")
    noisy = [Doubt(name="outliers", words=f"{share} % are outliers", advice="pin it") for share in (11, 12)]
    first, second, *rest = outcome.confirmation.measurements
    doubted = (first.model_copy(update={"doubts": (noisy[0],)}), second.model_copy(update={"doubts": (noisy[1],)}))
    confirmation = outcome.confirmation.model_copy(update={"measurements": (*doubted, *rest)})
    facts = Facts(outcome.model_copy(update={"confirmation": confirmation}))
    assert facts.doubts == [("onnx, 1 thread; litert, 1 thread", "outliers: pin it")]


@pytest.mark.parametrize("change", [{"winner": "none"}, {"equals": ("none",)}, {"front": ("none",)}, {"trials": ()}])
def test_an_outcome_that_contradicts_itself_is_one_line(made_up, change):
    with pytest.raises(ResultFileError, match="contradicts itself: it has no trial '"):
        tuning.summary_table(made_up("equals").model_copy(update=change))


def test_a_comparison_that_lacks_a_pair_is_one_line(made_up):
    outcome = made_up("equals")
    cut = outcome.confirmation.model_copy(update={"ratios": outcome.confirmation.ratios[1:]})
    with pytest.raises(ResultFileError, match="a ratio of two that were compared is missing"):
        tuning.answer(outcome.model_copy(update={"confirmation": cut}))


def test_the_search_again_is_a_command_or_a_call(made_up):
    outcome = made_up("one_winner")
    told = dict(commands(Facts(outcome)))
    assert told["The best alone"] == outcome.best.command
    engines = ",".join(outcome.question.engines)
    assert told["The search again"] == (
        f"tfperf tune 'my models/model.keras' --objective latency --batch 1 --threads 1 --engine {engines} "
        "--memory-limit 8589934592"
    )
    by_program = outcome.model_copy(update={"opened_as": "keras.Model mnist_cnn", "inputs": "given from Python"})
    (alone, _), (what, call) = commands(Facts(by_program))
    assert alone == "The best alone, in Python, where `net` is your model"
    assert what == "The search again, in Python, where `net` is your model, `inputs` are yours"
    assert call == (
        "tfperf.tune(net, inputs=inputs, objective='latency', batch=1, threads=1, "
        f"engines={outcome.question.engines!r}, memory_limit=8589934592)"
    )
    arrays_alone = outcome.model_copy(update={"inputs": "given from Python"})
    (alone, _), (what, call) = commands(Facts(arrays_alone))
    assert alone == "The best alone; INPUTS.npz has your inputs by their names"
    assert call.startswith("tfperf.tune('my models/model.keras', inputs=inputs, ")


def test_the_search_again_has_what_was_asked(made_up):
    outcome = made_up("throughput")
    limits = {"latency_limit": 2e-5, "memory_limit": 2**31, "trial_seconds": 60.0, "time_limit": 90.5}
    asked = {"engines": ("graph",), "precisions": ("int8",), "transformations": (), "tolerance": 0.5, "same_top1": True}
    opened = {"signature": "serve it", "seed": 7, "inputs": "in put.npz", "labels": "y.npz"}
    question = outcome.question.model_copy(update=asked | limits)
    changed = outcome.model_copy(update={"question": question} | opened)
    assert dict(commands(Facts(changed)))["The search again"] == (
        "tfperf tune 'my models/model.keras' --inputs 'in put.npz' --labels y.npz --objective throughput "
        "--batch 1,8,64,256 --threads 1,2 --engine graph --precision int8 --transform none --tolerance 0.5 --same-top1 "
        "--accuracy-drop 0.005 --latency-limit 0.00002s --memory-limit 2147483648 --trial-time 60 --time-limit 90.5 "
        "--signature 'serve it' --seed 7"
    )
    by_program = changed.model_copy(update={"labels": "given from Python"})
    (_, call) = commands(Facts(by_program))[-1]
    ast.parse(call)
    assert "labels=labels, " in call
    assert call.endswith(
        "same_top1=True, accuracy_drop=0.005, latency_limit=2e-05, memory_limit=2147483648, "
        "trial_seconds=60.0, time_limit=90.5, signature='serve it', seed=7)"
    )


def test_the_search_again_is_understood_by_the_command_line(made_up, monkeypatch):
    """Each flag of the command exists, and its value is taken as it was asked."""
    outcome = made_up("throughput")
    limits = {"latency_limit": 2e-5, "memory_limit": 2**31, "trial_seconds": 60.0, "time_limit": 90.5}
    changed = outcome.model_copy(
        update={
            "question": outcome.question.model_copy(update=limits | {"same_top1": True, "accuracy_drop": None}),
            "signature": "serve it",
            "seed": 7,
        }
    )
    asked = {}

    def search(model, inputs, **arguments):
        asked.update(arguments, model=model)
        raise ValueError("enough")

    monkeypatch.setattr("tfperf.tuning.tune", search, raising=False)
    command = shlex.split(commands(Facts(changed))[-1][1])
    assert CliRunner().invoke(app, command[1:]).exit_code == 2
    assert {name: asked[name] for name in limits} == limits
    assert (asked["model"], asked["signature"], asked["seed"]) == (outcome.opened_as, "serve it", 7)
    assert (asked["same_top1"], asked["batch"], asked["threads"]) == (True, (1, 8, 64, 256), (1, 2))


def test_the_default_memory_limit_is_left_out(made_up):
    outcome = made_up("one_winner")
    limit = int(MEMORY_SHARE * outcome.environment.memory_bytes)
    usual = outcome.model_copy(update={"question": outcome.question.model_copy(update={"memory_limit": limit})})
    assert "--memory-limit" not in commands(Facts(usual))[-1][1]


# ---------------------------------------------------------------- Markdown


def rendered(text):
    return MarkdownIt("commonmark").enable("table").render(text)


@pytest.mark.parametrize("case", ["one_winner", "nothing_ran", "pareto", "throughput"])
def test_markdown_has_the_answer_and_every_trial(made_up, case):
    outcome = made_up(case)
    html = rendered(tuning.markdown(outcome))
    told = re.sub("<[^>]+>", "", html).replace("&amp;", "&").replace("&quot;", '"')
    assert tuning.answer(outcome) in told
    trials = html[html.index("<h2>Every trial") : html.index("<h2>To reproduce")]
    assert trials.count("<tr>") == 1 + len(outcome.trials)
    assert ("<h2>Pareto front" in html) == bool(outcome.front)
    for _, command in commands(Facts(outcome)):
        assert command in told


def test_markdown_is_not_taken_in_by_hostile_names(made_up, outcomes):
    html = rendered(tuning.markdown(made_up("hostile")))
    tags = set(re.findall(r"<\s*/?\s*(\w+)", html))
    assert tags == {"h1", "h2", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "pre", "code"}
    trials = html[html.index("<h2>Every trial") : html.index("<h2>To reproduce")]
    assert trials.count("<tr>") == 1 + 2 * len(outcomes.HOSTILE)
    assert trials.count("<td") == 6 * 2 * len(outcomes.HOSTILE)  # no name opens a cell of its own
    for words in outcomes.HOSTILE:
        assert words in html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")


# ---------------------------------------------------------------- CSV


def test_csv_has_a_row_for_each_trial_in_plain_numbers(made_up):
    outcome = made_up("one_winner")
    rows = list(csv.DictReader(io.StringIO(tuning.csv_text(outcome))))
    assert [row["engine"] for row in rows[:6]] == ["litert", "onnx", "frozen", "graph", "eager", "predict"]
    assert {row["status"] for row in rows} == set(Status)
    best = rows[0]
    low, median, high = (float(best[f"latency, {what} (s)"]) for what in ("95 % low", "median", "95 % high"))
    assert low < median < high
    assert median == outcome.confirmation[outcome.winner].median
    assert float(best["throughput (examples/s)"]) == 1 / median
    assert float(best["speed-up (ratio)"]) == outcome.speed_up("eager, batch 1").estimate
    assert best["speed-up of"] == "model(x)"
    assert float(best["relative error (share)"]) == 8.3e-7
    assert int(best["on disk (bytes)"]) == 3 * 2**20
    crashed = next(row for row in rows if row["status"] == "crashed")
    assert crashed["latency, median (s)"] == ""
    assert "SIGSEGV" in crashed["reason"]


def test_a_spreadsheet_computes_nothing(made_up, outcomes):
    text = tuning.csv_text(made_up("hostile"))
    rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) == 1 + 2 * len(outcomes.HOSTILE)
    assert {len(row) for row in rows} == {len(rows[0])}
    assert not [cell for row in rows for cell in row if cell[:1] and cell[0] in "=+-@\t\r|"]
    assert any(cell.startswith("'=cmd|'/c calc'!A1") for row in rows for cell in row)


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@SUM(1)", " =1", "|x"])
def test_a_text_that_would_be_a_formula_gets_an_apostrophe(made_up, value):
    outcome = made_up("nothing_ran")
    trials = (outcome.trials[0].model_copy(update={"reason": value}), *outcome.trials[1:])
    rows = list(csv.DictReader(io.StringIO(tuning.csv_text(outcome.model_copy(update={"trials": trials})))))
    assert rows[0]["reason"] == f"'{value}"
    assert rows[0]["batch (examples)"] == "1"  # numbers stay numbers


def test_what_was_measured_again_is_told(made_up):
    assert trust_words(Facts(made_up("nothing_ran"))) == ""
    assert "litert, 1 thread; predict; model(x); tf.function." in trust_words(Facts(made_up("one_winner")))
