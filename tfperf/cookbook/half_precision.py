"""Half precision in the recipes: when it is too slow to train with, and why it is slower than float32."""

from tfperf.measure.environment import ARITHMETIC, Environment

__all__ = ["TOO_SLOW", "far_slower", "why_slower"]

TOO_SLOW = 20
"""Times as long as in float32 a step takes that a recipe neither trains with nor compares."""


def far_slower(policy: str, seconds: float, of_float32: float) -> str:
    """What a recipe says of a policy whose training step is too slow.

    Args:
        policy: Keras's name of it.
        seconds: of the one step that was timed.
        of_float32: seconds of one step in float32.
    """
    why = why_slower(policy.removeprefix("mixed_"), far=True)
    return (
        f"{policy}: far slower here, a step took {seconds:.1f} s, {seconds / of_float32:.0f} times as long as in "
        f"float32, because {why}. So it was neither trained nor compared."
    )


def why_slower(number_format: str, *, far: bool, environment: Environment | None = None) -> str:
    """Why a training step in a half format is slower than in float32, in words that follow "because".

    Args:
        number_format: "bfloat16" or "float16".
        far: whether a step takes so much longer that casts are not to blame.
        environment: of the measurement; None: this one.
    """
    here = environment or Environment.here()
    if here.accelerators:
        return "the casts cost more than the kernels save"
    if not here.instructions_for(number_format):
        lacks = ", ".join(ARITHMETIC[number_format])
        return f"this CPU has none of {lacks}, so every kernel converts to float32 and back"
    if far:
        return (
            "oneDNN, which TensorFlow calls for it on this CPU, has plain loops for some of its kernels; "
            "TF_ENABLE_ONEDNN_OPTS=0 goes without it"
        )
    return "the casts cost more than the kernels save"
