"""Half precision in the recipes: when it is too slow to train with, and why it is slower than float32."""

from tfperf.measure import Ratio, Verdict
from tfperf.measure.environment import ARITHMETIC, Environment

__all__ = ["TOO_SLOW", "speed_words", "why_slower"]

TOO_SLOW = 20
"""If a step takes so many times as long as in float32, a recipe does not train with it."""


def speed_words(policy: str, ratio: Ratio) -> str:
    """Say how fast a training step under a policy is beside float32, and why where it is slower.

    Args:
        policy: Keras's name of it: "mixed_bfloat16" or "mixed_float16".
        ratio: of the step under the policy against the step in float32.
    """
    words = f"{policy}: {ratio.verdict}; a training step has {ratio.estimate:.2f} times the speed of float32"
    if ratio.verdict is not Verdict.SLOWER:
        return f"{words}."
    return f"{words}, because {why_slower(policy.removeprefix('mixed_'), far=ratio.estimate * TOO_SLOW < 1)}."


def why_slower(number_format: str, *, far: bool, environment: Environment | None = None) -> str:
    """Say why a training step in a half format is slower than in float32, in words that follow "because".

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
