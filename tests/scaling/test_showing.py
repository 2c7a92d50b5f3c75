"""An outlook in rows, sentences and as a file."""

from tfperf.measure.results import read_document, write_result
from tfperf.scaling import BatchTimes, Exchange, outlook
from tfperf.scaling.showing import LIMITS, ScaleRecord, assumptions, record, rows, verdicts


def seen(workload, cluster, workers=(1, 4, 16, 64), **changes):
    return outlook(workload, cluster, Exchange("ring", **changes), workers)


def test_rows_are_the_predictions(workload, cluster):
    view = seen(workload, cluster)
    shown = rows(view)
    assert [row.workers for row in shown] == [1, 4, 16, 64]
    assert [row.efficiency for row in shown] == [one.efficiency.likely for one in view.predictions]
    assert all(row.low <= row.likely <= row.high for row in shown)
    assert all(row.bottleneck in LIMITS for row in shown)


def test_the_knee_and_the_changes_are_said_in_words(workload, cluster):
    view = seen(workload, cluster)
    pays, limited, helps, divided, accuracy = verdicts(view)
    assert pays.startswith(f"Workers pay up to {view.knee}")
    assert LIMITS[view.bottlenecks[-1]] in limited
    assert f"{view.remedies[0].words} ({view.remedies[0].gain - 1:+.0%})" in helps
    assert "64 in place of multiplying it" in divided
    assert "a batch of 4,096 in all" in accuracy


def test_one_worker_and_no_gain_are_said_too(workload, cluster):
    assert verdicts(seen(workload, cluster, (1,))) == ["One worker exchanges nothing; --workers asks about more."]
    slow = seen(workload.at_batch(1, 1e-3), cluster)
    assert verdicts(slow)[0].startswith("More workers do not pay")


def test_it_says_so_where_none_of_the_numbers_pays(workload, cluster):
    """The knee is then 1, which was not asked for; a divided batch gains nothing either."""
    pays, _, _, divided, accuracy = verdicts(seen(workload.at_batch(1, 1e-3), cluster, (16, 64)))
    assert pays.startswith("More workers do not pay")
    assert divided.endswith("gains nothing.")
    assert "sooner than with one" in accuracy


def test_what_is_measured_and_what_is_given_are_told_apart(workload, cluster):
    view = seen(workload, cluster, compression=0.5)
    given = assumptions(view, None, "the links are as given")
    assert "is as given" in given[0]
    assert "sent as 2 bytes each" in given[1]
    measured = assumptions(view, BatchTimes.fit({32: 0.13, 64: 0.25}), "the links are as given")
    assert "measured on this machine (batch 32: 130 ms, 64: 250 ms)" in measured[0]


def test_the_file_reads_back(workload, cluster, tmp_path):
    view = seen(workload, cluster)
    written = record(view, "net", False, ("assumed",))
    write_result(tmp_path / "s.json", written)
    read = read_document(tmp_path / "s.json", ScaleRecord)
    assert read == written
    assert read.rows[2].examples_per_second.likely == view.predictions[2].throughput.likely
    assert read.changes[0].words == view.remedies[0].words
