"""What a trace says of a run that something disturbs, now in one kernel, now in another."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfperf.hardware.kernels.traced import Traced

USUAL, DISTURBED = 10_000, 90_000
"""Nanoseconds."""


@pytest.fixture
def disturbed(monkeypatch):
    """In each run another kernel takes long."""
    runs = itertools.count()
    as_it_is = Traced._traced_after_another

    def planted(self):
        made = as_it_is(self)
        products = [one for one in made if one.node_name.startswith("product")]
        for one in made:
            one.op_start_rel_nanos = one.op_end_rel_nanos = 0
        for one in products:
            one.op_end_rel_nanos = USUAL
        products[next(runs) % len(products)].op_end_rel_nanos = DISTURBED
        return made

    monkeypatch.setattr(Traced, "_traced_after_another", planted)


@pytest.mark.usefixtures("disturbed")
def test_usual_times_add_up_to_those_of_a_run() -> None:
    @tf.function
    def chain(x):
        for place in range(4):
            x = tf.matmul(x, x, name=f"product_{place}")
        return x

    x = np.ones((8, 8), "float32")
    with Traced(chain.get_concrete_function(tf.constant(x)), [x]) as traced:
        found = [one for one in traced.operations() if one.type == "MatMul"]
    assert [one.seconds for one in found] == pytest.approx([USUAL * 1e-9] * 4)
    assert sum(one.usual for one in found) == pytest.approx((3 * USUAL + DISTURBED) * 1e-9)
