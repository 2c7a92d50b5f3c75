import keras
import numpy as np
import pytest

from tfperf.nets import get_net


def parameters(length, vocabulary_size, width, depth, feed_forward, num_classes) -> int:
    embeddings = vocabulary_size * width + length * width
    attention = 4 * (width * width + width)  # query, key, value, output
    dense = (width * feed_forward + feed_forward) + (feed_forward * width + width)
    norms = 2 * (2 * width)
    return embeddings + depth * (attention + dense + norms) + 2 * width + (width * num_classes + num_classes)


def test_parameters() -> None:
    expected = parameters(64, 256, 128, 2, 512, 10)
    assert get_net("transformer").count_params() == expected == 439_050


def test_parameters_of_another_size() -> None:
    net = get_net(
        "transformer",
        input_shape=(9,),
        vocabulary_size=31,
        width=24,
        heads=3,
        depth=3,
        feed_forward=40,
        num_classes=5,
    )
    assert net.count_params() == parameters(9, 31, 24, 3, 40, 5)


def test_projections_start_different() -> None:
    attention = get_net("transformer", seed=0).get_layer("block1_attention")
    kernels = [attention.query_dense.kernel, attention.key_dense.kernel, attention.value_dense.kernel]
    query, key, value = (kernel.numpy() for kernel in kernels)
    assert query.shape == key.shape == value.shape == (128, 4, 32)
    assert not np.allclose(query, key)
    assert not np.allclose(query, value)
    assert not np.allclose(key, value)


def test_positions_count_from_zero_and_order_matters(examples) -> None:
    net = get_net("transformer", seed=0)
    seen = keras.Model(net.input, net.get_layer("position_embedding").output)
    places = net.get_layer("position_embedding").embeddings.numpy()
    np.testing.assert_array_equal(seen(examples(net, 2)).numpy(), np.stack([places, places]))

    token_ids = examples(net, 1)
    assert not np.allclose(net(token_ids).numpy(), net(token_ids[:, ::-1]).numpy(), atol=1e-4)


def test_every_token_reaches_the_logits(examples) -> None:
    net = get_net("transformer", seed=0, input_shape=(6,))
    token_ids = examples(net, 1)
    before = net(token_ids).numpy()
    for place in range(6):
        changed = token_ids.copy()
        changed[0, place] = (changed[0, place] + 1) % 256
        assert np.abs(net(changed).numpy() - before).max() > 1e-4, place


def test_rows_of_a_batch_do_not_mix(examples) -> None:
    net = get_net("transformer", seed=0)
    token_ids = examples(net, 3)
    alone = np.concatenate([net(row[np.newaxis]).numpy() for row in token_ids])
    np.testing.assert_allclose(net(token_ids).numpy(), alone, rtol=1e-4, atol=1e-5)


def test_only_stock_layers() -> None:
    modules = {type(layer).__module__.split(".")[0] for layer in get_net("transformer").layers}
    assert modules == {"keras"}


def test_heads_divide_width() -> None:
    with pytest.raises(ValueError, match=r"expected heads to divide width.* Received: width=128, heads=3$"):
        get_net("transformer", heads=3)


@pytest.mark.parametrize("option", ["vocabulary_size", "width", "heads", "depth", "feed_forward"])
def test_sizes_are_positive_whole_numbers(option: str) -> None:
    with pytest.raises(ValueError, match=f"expected {option} to be a whole number, 1 or more"):
        get_net("transformer", **{option: 0})
