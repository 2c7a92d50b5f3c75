"""The report as a page: complete, self-contained, safe, and as a browser sees it."""

import html
import os
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from tfperf.errors import ResultFileError
from tfperf.report import tuning
from tfperf.report.page import check_report_path, notebook_html, page, write_report
from tfperf.report.tuning_facts import Facts

HARMLESS = {
    "html", "head", "meta", "link", "title", "style", "body", "header", "main", "section", "div", "h1", "h2", "h3",
    "figure", "figcaption", "p", "dl", "dt", "dd", "ul", "li", "strong", "small", "bdi", "code", "pre", "span", "time",
    "table", "thead", "tbody", "tr", "th", "td", "details", "summary",
    "svg", "defs", "g", "path", "use", "text", "clippath", "rect",
}  # fmt: skip
"""Every element that our own templates and pictures are made of."""


class Reader(HTMLParser):
    """Reads a page as a browser does, and keeps what it is made of."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


CASES = ["one_winner", "equals", "yours_wins", "nothing_ran", "interrupted", "pareto", "throughput", "hostile"]


@pytest.mark.parametrize("case", CASES)
def test_a_page_is_one_file_that_needs_nothing_else(page_of, case):
    read = Reader(page_of(case))
    assert read.open == []  # every element is closed
    assert set(read.tags) <= HARMLESS
    for tag, name, value in read.attributes:
        assert not name.startswith("on")
        assert name not in {"src", "srcset", "action"}
        if name == "href":
            assert value.startswith("#") or (tag, value) == ("link", "data:,")
    markup = re.sub(r">[^<]*<", "><", page_of(case))
    assert re.findall(r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)", markup) == []
    (policy,) = [value for tag, name, value in read.attributes if tag == "meta" and value.startswith("default-src")]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    assert "script" not in policy


@pytest.mark.parametrize("case", CASES)
def test_a_page_begins_with_the_answer_and_has_every_trial(made_up, page_of, case):
    outcome = made_up(case)
    text = page_of(case)
    read = Reader(text)
    answer = " ".join(tuning.answer(outcome).split())
    assert answer in read.text
    assert read.text.index(answer) < read.text.index("Every trial")
    trials = text[text.index('<section id="trials">') : text.index('<section id="doubts">')]
    assert trials.count("<tr") == 1 + len(outcome.trials)
    for trial in outcome.trials:
        assert str(trial.status) in trials
        assert html.escape(trial.reason, quote=False).replace('"', "&#34;").replace("'", "&#39;") in trials
        assert trial.command in "".join(Reader(trials).words)
    assert ("<details>" in trials) == (len(outcome.trials) > 12)
    assert text.count("<svg") == {"one_winner": 4, "throughput": 5, "pareto": 5, "hostile": 5, "nothing_ran": 0}.get(
        case, text.count("<svg")
    )
    assert ('<section id="front">' in text) == bool(outcome.front)
    assert 'class="best"' in text or outcome.winner is None
    for words in ("What the error means", "To reproduce", "on what machine", "Doubts", outcome.environment.system):
        assert words in read.text


def test_a_page_is_the_same_each_time(made_up, page_of):
    assert page(made_up("pareto")) == page_of("pareto")


def test_pictures_on_a_page_share_no_id(page_of):
    text = page_of("hostile")
    ids = re.findall(r'\sid="([^"]+)"', re.sub(r">[^<]*<", "><", text))
    assert len(ids) == len(set(ids))
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        ET.fromstring(svg)


def test_hostile_text_stays_text(page_of, outcomes):
    read = Reader(page_of("hostile"))
    told = " ".join(read.words)
    for words in outcomes.HOSTILE:
        assert words in told


@pytest.mark.parametrize("case", CASES)
def test_a_notebook_gets_the_answer_and_the_finalists(made_up, case):
    outcome = made_up(case)
    text = notebook_html(outcome)
    read = Reader(text)
    assert " ".join(tuning.answer(outcome).split()) in read.text
    assert set(read.tags) <= {"div", "p", "strong", "small", "bdi", "table", "thead", "tbody", "tr", "th", "td"}
    finalists = Facts(outcome).finalists
    assert text.count("<tr") == (1 + len(finalists) if finalists else 0)


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("suffix", "begins"), [(".html", "<!doctype html>"), (".md", "# tfperf tune: "), (".csv", "name,")]
)
def test_a_report_is_written_as_its_ending_says(made_up, tmp_path, suffix, begins):
    path = tmp_path / "deep" / f"report{suffix}"
    write_report(path, made_up("one_winner"))
    assert path.read_text().startswith(begins)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["report", "report.txt", "report.HTML.gz", "report.pdf", ".html", "a\nb.pdf"])
def test_another_ending_is_one_line(made_up, tmp_path, name):
    with pytest.raises(ResultFileError, match=r"expected a report's file to end in \.html, \.md or \.csv\.") as error:
        write_report(tmp_path / name, made_up("equals"))
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told_beforehand(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder.html").mkdir()
    check_report_path(tmp_path / "new" / "a.html")
    for path in (tmp_path / "file" / "a.html", tmp_path / "folder.html", tmp_path / f"{'a' * 300}.html"):
        with pytest.raises(ResultFileError, match="cannot write the report"):
            check_report_path(path)


def test_a_failed_report_leaves_the_old_one(made_up, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultFileError, match=r"cannot write the report .*: No space left on device"):
        write_report(path, made_up("equals"))
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


# ---------------------------------------------------------------- in a browser

POLICY = re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>\n')


def title_of(dom):
    return html.unescape(re.search("<title>(.*?)</title>", dom, flags=re.DOTALL)[1])


def taken_in(text):
    """The page as it would be if its templates escaped nothing."""
    head, body = text.split("</head>")
    return f"{head}</head>{html.unescape(body)}"


def test_in_a_browser_no_hostile_text_runs_or_becomes_an_element(made_up, page_of, browse):
    outcome = made_up("hostile")
    dom, complaints = browse(page_of("hostile"), "--dump-dom")
    assert title_of(dom) == f"{outcome.model}: tfperf tune"
    assert complaints == []
    assert set(Reader(dom).tags) <= HARMLESS


def test_in_a_browser_the_policy_stops_what_an_escape_would_have_missed(page_of, browse):
    text = taken_in(page_of("hostile"))
    dom, complaints = browse(text, "--dump-dom")
    assert not title_of(dom).endswith("ran")
    assert any("Content Security Policy" in line for line in complaints)
    assert "<script>" in dom


def test_in_a_browser_the_hostile_text_would_run_without_both(page_of, browse):
    text = POLICY.sub("", taken_in(page_of("hostile")))
    dom, _ = browse(text, "--dump-dom")
    assert title_of(dom).endswith("ran")


TELEPHONE = """<title></title><iframe style="width: 390px; height: 844px; border: 0" srcdoc="{}"></iframe><script>
addEventListener("load", () => {{
  const shown = document.querySelector("iframe").contentDocument, page = shown.documentElement;
  for (const one of shown.querySelectorAll("details")) one.open = true;
  const rights = [...shown.querySelectorAll("figure, pre, .box, .facts")].map(one => one.getBoundingClientRect().right);
  document.title = [page.clientWidth, page.scrollWidth, Math.ceil(Math.max(...rights))].join();
}})</script>"""
"""A page that shows another in a frame as narrow as a telephone, and tells in its title how wide that has become."""


@pytest.mark.parametrize("case", ["hostile", "throughput", "one_winner"])
def test_on_a_telephone_nothing_runs_out_of_the_screen(page_of, browse, case):
    dom, _ = browse(TELEPHONE.format(html.escape(page_of(case))), "--dump-dom")
    width, scrolled, rightmost = map(int, title_of(dom).split(","))
    assert width == 390
    assert scrolled == width
    assert 300 < rightmost <= width


def test_a_browser_prints_it(page_of, browse, tmp_path):
    browse(page_of("one_winner"), f"--print-to-pdf={tmp_path / 'page.pdf'}")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
