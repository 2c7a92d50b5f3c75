"""An explanation as a part of a page: words, the table of layers, and the roofline."""

from markupsafe import Markup

from tfperf.explaining.explanation import Explained, Explanation
from tfperf.explaining.showing import COLUMNS, advice_lines, layer_rows
from tfperf.measure.words import escape_unprintable
from tfperf.report.page import Section
from tfperf.report.roofline_plot import Ceiling, Point, roofline_plot

__all__ = ["ceilings", "points", "section"]


def section(explanation: Explanation) -> Section:
    """What the model waits for, for the page of `tfperf tune`; names are text, whatever they hold."""
    kind = "training" if explanation.training else "the forward pass"
    parts = [
        Markup('<p class="note">{}</p>').format(
            f"Measured on the CPU with {explanation.threads} threads, one operation at a time: {kind}."
        )
    ]
    parts += [_part(explanation, explained) for explained in explanation.batches]
    return Section("What it waits for", Markup("\n").join(parts))


def _part(explanation: Explanation, explained: Explained) -> Markup:
    """One batch size."""
    picture = roofline_plot(points(explained), ceilings(explanation), f"roofline_{explained.batch}")
    told = Markup("\n").join(
        Markup("<li><bdi>{}</bdi></li>").format(_line(one))
        for one in (*explained.verdicts, *advice_lines(explanation, explained))
    )
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(column) for column in COLUMNS)
    rows = Markup("\n").join(
        Markup('<tr><th scope="row"><bdi>{}</bdi></th>{}</tr>').format(
            _line(name), Markup("").join(Markup("<td>{}</td>").format(cell) for cell in cells)
        )
        for name, *cells in layer_rows(explained)
    )
    label = f"Layers at batch {explained.batch}"
    return Markup(
        "<h3>Batch {}</h3>\n<ul>\n{}\n</ul>\n{}\n"
        '<div class="box" tabindex="0" role="region" aria-label="{}">\n<table>\n<thead><tr>{}</tr></thead>\n'
        "<tbody>\n{}\n</tbody>\n</table>\n</div>"
    ).format(
        explained.batch,
        told,
        Markup("<figure>{}</figure>").format(Markup(picture)) if picture else "",  # noqa: S704 - our own picture
        label,
        head,
        rows,
    )


def _line(text: str) -> str:
    return escape_unprintable(text)


def points(explained: Explained) -> list[Point]:
    """The layers, and the whole as a graph, for the roofline."""
    whole = sum(layer.seconds for layer in explained.layers) or 1.0
    found = [
        Point(layer.name, layer.intensity, layer.flops / layer.seconds, layer.seconds / whole)
        for layer in explained.layers
        if layer.seconds
    ]
    call = explained.call("graph")
    flops, size = (sum(getattr(layer, field) for layer in explained.layers) for field in ("flops", "bytes"))
    if call is not None and size:
        found.append(Point("a call, as a graph", flops / size, flops / call.seconds, 1.0, whole=True))
    return found


def ceilings(explanation: Explanation) -> list[Ceiling]:
    """The lines of the roofline, with their figures."""
    return [
        Ceiling(
            f"{roof.name}, {roof.flops_per_second / 1e9:.3g} GFLOP/s"
            if roof.flops_per_second
            else f"{roof.name}, {(roof.bytes_per_second or 0.0) / 1e9:.3g} GB/s",
            roof.flops_per_second,
            roof.bytes_per_second,
        )
        for roof in explanation.roofs
    ]
