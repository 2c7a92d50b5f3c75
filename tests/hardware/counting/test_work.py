"""Which layer an operation's name tells of."""

import pytest

from tfperf.hardware.counting.work import OUTSIDE, Work, by_layer, layer_of

LAYERS = ("hidden", "hidden_1", "block2_attention", "logits")


@pytest.mark.parametrize(
    ("operation", "layer"),
    [
        ("mlp_1/hidden_1/MatMul", "hidden_1"),
        ("mlp_1/hidden_1_1/MatMul", "hidden_1"),
        ("mlp/hidden_2/BiasAdd", "hidden"),
        ("gradient_tape/transformer_1/block2_attention_1/query/einsum/Einsum", "block2_attention"),
        ("StatefulPartitionedCall/mlp/logits_3/MatMul", "logits"),
        ("Mean", None),
        ("", None),
    ],
)
def test_the_layer_of_an_operation(operation, layer):
    assert layer_of(operation, LAYERS) == layer


def test_works_are_added_by_layer_in_the_order_of_the_net():
    def work(name, flops):
        return Work(name=name, flops=flops, products=0, read=10, written=5, operations=1)

    works = [work("m/logits/MatMul", 3), work("m/hidden/Relu", 1), work("loss", 7), work("m/hidden/MatMul", 5)]
    found = by_layer(works, LAYERS)
    assert [(one.name, one.flops, one.bytes, one.operations) for one in found] == [
        ("hidden", 6, 30, 2),
        ("logits", 3, 15, 1),
        (OUTSIDE, 7, 15, 1),
    ]
    assert found[0].intensity == 0.2
    assert Work(name="none", flops=0, products=0, read=0, written=0, operations=0).intensity == float("inf")
