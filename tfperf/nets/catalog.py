"""``get_net``: from the name of a net, and its options, to a built ``keras.Model``."""

import difflib
import importlib
import inspect
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from tfperf.nets.arguments import whole_number

if TYPE_CHECKING:
    import keras

__all__ = ["NAMES", "get_net"]

# Each name is also the module of this package whose build() makes the net.
NAMES = ("mlp", "mnist_cnn", "lenet", "resnet18", "transformer")


def get_net(name: str = "mlp", *, seed: int | None = None, **options: Any) -> "keras.Model":
    """Build a net by its name; ``get_net()`` is the multilayer perceptron of 512 features and 2 outputs.

    =============  ====================  =====================  ==========================================
    name           input of one example  logits of one example  what it is
    =============  ====================  =====================  ==========================================
    mlp            (512,) float          (2,)                   Dense 256, 128, 2
    mnist_cnn      (28, 28, 1) float     (10,)                  one convolution, one hidden layer
    lenet          (28, 28, 1) float     (10,)                  two convolutions, average pooling
    resnet18       (28, 28, 1) float     (10,)                  18 layers with residual connections
    transformer    (64,) int32 ids       (10,)                  encoder of 2 blocks, 128 wide
    =============  ====================  =====================  ==========================================

    Every net takes a batch of any size, returns logits (no softmax) of shape (batch, num_classes) in float32
    under every precision policy, and computes everything before them as the global Keras policy says.

    Args:
        name: one of ``NAMES``.
        seed: a whole number, 0 or more: the same seed gives the same weights, and the random state of the
            caller (Python's, NumPy's, Keras') is afterwards what it was before. The policies "float16",
            "bfloat16" and "float64" draw in their own type, hence other weights than "float32" and the mixed.
            None: the seed of each layer is drawn from Python's ``random``, as in any Keras model, so weights
            differ from call to call. A seed replaces the state of ``random`` while the net is built: do not
            draw from it in another thread at that time.
        **options: keyword arguments of the architecture's ``build``. All know ``input_shape`` (without the
            batch) and ``num_classes``; see ``tfperf.nets.mlp.build`` and its siblings for the others.

    Returns:
        A built ``keras.Model`` of stock Keras layers whose ``name`` is ``name``.

    Raises:
        ValueError: the name is unknown, or an option has a value that the net cannot have.
        TypeError: the net has no such option.
    """
    if name not in NAMES:
        raise ValueError(
            f"expected the name of a net, one of: {', '.join(NAMES)}. Received: name={name!r}. "
            f"The nearest is {_nearest(str(name), NAMES)!r}"
        )
    seeded = nullcontext() if seed is None else _python_random_seeded(whole_number("seed", seed, at_least=0))
    build = importlib.import_module(f"tfperf.nets.{name}").build
    known = tuple(inspect.signature(build).parameters)
    for option in options:
        if option not in known:
            raise TypeError(
                f"expected an option of {name!r}, one of: seed, {', '.join(known)}. "
                f"Received: {option}={options[option]!r}. The nearest is {_nearest(option, known)!r}"
            )
    with seeded:
        return build(**options)


def _nearest(word: str, candidates: tuple[str, ...]) -> str:
    return difflib.get_close_matches(word.casefold(), candidates, n=1, cutoff=0.0)[0]


@contextmanager
def _python_random_seeded(seed: int) -> Iterator[None]:
    # A Keras initializer without a seed draws one from Python's random, so this one generator decides every
    # weight. Explicit seeds would not do: the attention layer copies its initializer, seed included, and its
    # query, key and value projections would start equal.
    saved = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(saved)
