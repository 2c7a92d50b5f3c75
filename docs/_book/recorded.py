"""The directive `recorded`: what a recipe found on one machine, in its own words, which stay as they were printed."""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tfperf.cookbook.recording import Recording
from tfperf.measure import Comparison
from tfperf.measure.results import read_document
from tfperf.measure.words import format_interval, format_ratio
from tfperf.report.tables import CORRECTION

SHOWN = ("tensorflow", "keras", "horovod")
"""Packages whose versions are shown."""


class RecordedRun(SphinxDirective):
    """`{recorded} MACHINE RECIPE`: findings, tables and plot, which are not translated: no catalog holds them."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        machine, recipe = self.arguments
        file = Path(self.env.srcdir) / "recorded" / machine / f"{recipe}.json"
        self.env.note_dependency(str(file))
        result = read_document(file, Recording).result
        shown = nodes.container(classes=["recorded"])
        findings = nodes.bullet_list()
        for sentence in result.meaning:
            findings += nodes.list_item("", _sentence(sentence))
        shown += findings
        shown += [_table(comparison) for comparison in result.comparisons]
        words = f"Plot of {recipe} on {machine}. {result.meaning[0]}"
        shown += nodes.image(uri=f"/recorded/{machine}/{recipe}.svg", words=words)
        versions = [
            f"{name} {result.environment.packages[name]}" for name in SHOWN if name in result.environment.packages
        ]
        facts = [result.created[:10], result.environment.cpu, *versions, f"Python {result.environment.python}"]
        shown += nodes.paragraph("", " · ".join(facts), classes=["versions"])
        return [shown]


def name_plots(app: Sphinx, doctree: nodes.document, _name: str) -> None:
    """Give plots their alternative texts; late, as catalogs of what is to be translated would hold them."""
    if app.builder.name != "gettext":
        for image in doctree.findall(nodes.image):
            if "words" in image:
                image["alt"] = image["words"]


def _sentence(sentence: str) -> nodes.paragraph:
    if not sentence.startswith(CORRECTION):
        return nodes.paragraph("", sentence)
    label = CORRECTION.strip()
    return nodes.paragraph("", "", nodes.strong("", label), nodes.Text(f" {sentence.removeprefix(CORRECTION)}"))


def _table(comparison: Comparison) -> nodes.table:
    """One row for each candidate, as the recipe prints it."""
    first = comparison.measurements[0]
    rows = [("candidate", "median [95 %]", "speed-up [99 %]", "verdict")]
    for measurement in comparison.measurements:
        ratio = None if measurement is first else comparison.ratio(first.name, measurement.name)
        speed, verdict = (format_ratio(ratio.interval), str(ratio.verdict)) if ratio else ("1", "baseline")
        rows.append((measurement.name, format_interval(measurement.interval), speed, verdict))
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in rows[0]), cols=len(rows[0]))
    head, body = nodes.thead("", _row(rows[0])), nodes.tbody("", *map(_row, rows[1:]))
    group += [head, body]
    return nodes.table("", group)


def _row(cells: tuple[str, ...]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", cell)) for cell in cells))
