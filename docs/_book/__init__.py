"""Sphinx extension: makes pages of the recipes, the recorded runs, the concordance and the command line.

Pages are written below docs/ before Sphinx reads them, and are not kept in git. Nothing of tfperf's recipes is run.
"""

from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from _book.pages import write_pages
from _book.recorded import RecordedRun, name_plots
from tfperf.errors import TfperfError


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("recorded", RecordedRun)
    app.connect("builder-inited", _write)
    app.connect("source-read", _lead_to_pages)
    app.connect("doctree-resolved", name_plots)
    app.connect("autodoc-process-docstring", _leave_out_aliases)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _write(app: Sphinx) -> None:
    try:
        write_pages(app.srcdir)
    except TfperfError as error:
        raise ExtensionError(str(error)) from error


def _lead_to_pages(_app: Sphinx, _name: str, source: list[str]) -> None:
    """Links to files outside docs/, which are right where the files are read, lead to pages of the book."""
    for file, page in {"../benchmarks/README.md": "figures.md", "../saved_models/README.md": "loading.md"}.items():
        source[0] = source[0].replace(f"]({file}", f"]({page}")


def _leave_out_aliases(
    _app: Sphinx, _kind: str, _name: str, _thing: object, _options: object, lines: list[str]
) -> None:
    """Leave out what Python says of the fields of every named tuple."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()
