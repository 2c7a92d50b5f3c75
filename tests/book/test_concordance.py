"""The concordance: every claim has its verdict, and figures are judged as they say."""

import pytest
from _book.concordance import Claim, Figure, judge, read_concordance, words_of_figure

from tests.book.conftest import ROOT
from tfperf.cookbook.recording import Recording
from tfperf.errors import TfperfError
from tfperf.measure import compare
from tfperf.measure.results import Result

CLAIMS = 286
ENTRY = """
[[claim]]
id = "000-01"
heading = "混合式编程"
claim = "It prints 10."
verdict = "holds"
statement = "It does."
recipes = ["hybridize"]
"""


@pytest.fixture
def read(tmp_path):
    """A function that reads a concordance of this text."""

    def read(text):
        file = tmp_path / "concordance.toml"
        file.write_text(text, encoding="utf-8")
        return read_concordance(file)

    return read


def claim(**figure):
    values = {"heading": "x", "claim": "It is so.", "verdict": "holds", "statement": "It is.", "recipes": ()}
    return Claim(id="000-19", **values, figure=Figure(recipe="hybridize", **figure))


FACTS = {"traces": 4, "calls": 2, "disk": "4,843, queued 7,639", "folded": True, "bytes": 75_497_472}


@pytest.fixture(scope="module")
def result():
    """A result with one fact and one comparison, in which "graph" does less."""
    ways = {"eager": lambda: sum(range(20_000)), "graph": lambda: sum(range(200))}
    comparison = compare(ways, time_limit=1.0)
    return Result(name="hybridize", comparisons=(comparison,), facts=FACTS)


def test_the_concordance_of_the_book_is_whole():
    claims = read_concordance(ROOT / "docs" / "concordance.toml")
    assert len(claims) == CLAIMS
    numbers = [tuple(map(int, claim.id.split("-"))) for claim in claims]
    assert numbers == sorted(numbers)
    assert {claim.verdict for claim in claims} == {"holds", "dated", "wrong", "depends", "not checkable"}
    for one in claims:
        assert one.claim.endswith((".", "?")), one.id
        assert one.statement.endswith("."), one.id
        assert one.claim.count("`") % 2 == one.statement.count("`") % 2 == 0, one.id


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('verdict = "holds"\n', "", "verdict: Field required"),
        ('"holds"', '"maybe"', "verdict: Input should be"),
        ('claim = "It prints 10."', 'claim = ""', "claim: String should have at least 1 character"),
        ('["hybridize"]', '["no_such"]', "a recipe that does not exist: no_such"),
        ('"000-01"', '"005-01"', "id: String should match"),
    ],
)
def test_a_claim_that_is_not_whole_is_refused_in_one_line(read, old, new, words):
    assert ENTRY.count(old) == 1
    with pytest.raises(TfperfError, match=words) as caught:
        read(ENTRY.replace(old, new))
    assert "\n" not in str(caught.value)


def test_a_claim_that_comes_twice_is_refused(read):
    with pytest.raises(TfperfError, match="Received twice: 000-01"):
        read(ENTRY + ENTRY)


def test_a_ratio_is_judged_by_its_bounds(result):
    ratio = result.comparisons[0].ratio("eager", "graph").estimate
    words = judge(claim(ratio=("eager", "graph"), unit="times", claimed=2.2, at_least=2.2), result)
    assert words == f"holds: {ratio:.3g} times; {ratio / 2.2:.2g} times the source's 2.2"
    assert judge(claim(ratio=("graph", "eager"), at_least=2.2), result).startswith("does not hold: 0.0")
    assert judge(claim(ratio=("eager", "graph"), at_most=2.2), result).startswith("does not hold: ")


def test_a_figure_without_bounds_is_shown_without_a_verdict(result):
    assert judge(claim(fact="traces", unit="traces"), result) == "4 traces"


def test_facts_are_numbers_words_or_two_of_them(result):
    assert judge(claim(fact="disk", claimed=100_000, at_least=100_000), result) == (
        "does not hold: 4,843, queued 7,639; 0.048 times the source's 100,000"
    )
    assert judge(claim(fact="folded", at_least=1), result) == "holds: yes"
    assert judge(claim(fact="bytes", unit="bytes"), result) == "75,497,472 bytes"
    assert judge(claim(facts=("traces", "calls"), unit="a call", at_most=1), result) == "does not hold: 2 a call"


@pytest.mark.parametrize("figure", [{"fact": "no such fact"}, {"ratio": ("eager", "XLA")}])
def test_a_figure_that_the_recording_lacks_is_refused(result, figure):
    with pytest.raises(TfperfError, match="000-19"):
        judge(claim(**figure), result)


@pytest.mark.parametrize("figure", [{}, {"fact": "traces", "ratio": ("eager", "graph")}])
def test_a_figure_has_one_place(figure):
    with pytest.raises(ValueError, match="expected a ratio, a fact or two facts"):
        Figure(recipe="hybridize", **figure)


def test_machines_without_the_recipe_are_left_out(result):
    recording = Recording(technique="0" * 64, result=result)
    machines = {"one-2": {"hybridize": recording}, "other-4": {}}
    assert words_of_figure(claim(fact="traces"), machines) == {"one-2": "4"}
    assert words_of_figure(claim(fact="traces").model_copy(update={"figure": None}), machines) == {}
