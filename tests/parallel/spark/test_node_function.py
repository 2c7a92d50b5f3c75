"""What TensorFlowOnSpark's nodes return."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfperf.parallel.spark import NodeFunction


def test_results_come_back_in_the_order_of_the_executors():
    with NodeFunction(divmod) as node:
        sent = pickle.loads(pickle.dumps(node))  # as Spark sends it to its executors
        for executor in (10, 9, 0):
            sent((executor, 4), SimpleNamespace(executor_id=executor))
        assert node.results() == [(0, 0), (2, 1), (2, 2)]


def test_its_folder_ends_with_the_block():
    with NodeFunction(divmod) as node:
        folder = Path(node._folder)
        with pytest.raises(ZeroDivisionError):
            node((1, 0), SimpleNamespace(executor_id=0))
        assert folder.is_dir()
    assert not folder.exists()
