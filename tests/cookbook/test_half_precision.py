"""tfperf.cookbook.half_precision: what a recipe says of a slower format."""

import pytest

from tfperf.cookbook.half_precision import speed_words, why_slower
from tfperf.measure import Ratio, Verdict

CASTS = "the casts cost more than the kernels save"


@pytest.mark.parametrize(
    ("features", "accelerators", "far", "words"),
    [
        (("avx512_fp16",), (), False, CASTS),
        (("avx512_fp16",), (), True, "oneDNN"),
        (("avx512_bf16",), (), False, "this CPU has none of avx512_fp16, amx_fp16, asimdhp"),
        (("avx512_bf16",), (), True, "this CPU has none of avx512_fp16, amx_fp16, asimdhp"),
        (("avx2",), ("NVIDIA H100",), False, CASTS),
        (("avx512_fp16",), ("NVIDIA H100",), True, CASTS),
    ],
)
def test_the_reason_is_that_of_the_device_that_computes(environment, features, accelerators, far, words):
    machine = environment.model_copy(update={"cpu_features": features, "accelerators": accelerators})
    assert words in why_slower("float16", far=far, environment=machine)


@pytest.mark.parametrize(
    ("times", "verdict", "words"),
    [
        (2.0, Verdict.FASTER, "mixed_float16: faster; a training step has 2.00 times the speed of float32."),
        (0.4, Verdict.SLOWER, "mixed_float16: slower; a training step has 0.40 times the speed of float32, because"),
    ],
)
def test_a_slower_step_is_told_with_its_reason(times, verdict, words):
    names = {"baseline": "float32", "candidate": "mixed_float16"}
    ratio = Ratio(**names, estimate=times, low=times * 0.9, high=times * 1.1, verdict=verdict)
    assert speed_words("mixed_float16", ratio).startswith(words)
