"""An explanation as one HTML file that needs nothing else."""

from pathlib import Path

from tfperf.errors import ResultFileError
from tfperf.explaining.explanation import Explanation
from tfperf.explaining.section import section
from tfperf.files import writing_whole
from tfperf.measure.words import escape_unprintable
from tfperf.report.page import TEMPLATES
from tfperf.report.targets import check_target
from tfperf.report.tuning_words import environment_rows

__all__ = ["check_page_path", "write_page"]


def check_page_path(path: Path) -> None:
    """Refuse a place where no page can be written, before minutes of work are spent on it.

    Raises:
        ResultFileError: its ending is not .html, or it cannot be written there.
    """
    check_target(path, "report", path.suffix == ".html", ".html")


def write_page(path: Path, explanation: Explanation) -> None:
    """Write the page, whole or not at all. Folders are made.

    Raises:
        ResultFileError: the ending is not .html, or the file cannot be written there.
    """
    check_page_path(path)
    text = TEMPLATES.get_template("explanation.html.j2").render(
        model=explanation.model,
        answer=explanation.batches[0].verdicts[0] if explanation.batches[0].verdicts else "",
        section=section(explanation),
        doubts=[str(doubt) for doubt in explanation.doubts],
        environment=environment_rows(explanation.environment),
        created=explanation.created,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise ResultFileError(f"cannot write the report {escape_unprintable(path)[:200]}: {error.strerror}") from error
