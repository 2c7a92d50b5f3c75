"""Every program of saved_models/README.md runs as printed, and prints the numbers of the net.

TensorFlow Serving's is the exception: its server is no Python package.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).parents[1] / "saved_models" / "README.md"
FILES = {"c": "mlp.c", "cpp": "mlp.cc", "python": "program.py"}


def sections():
    """Title -> the fenced programs under it, as (language, text)."""
    parts = re.split(r"^## (.*)$", README.read_text(), flags=re.MULTILINE)[1:]
    programs = {
        title.split(",")[0]: re.findall(r"^```(\w+)\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL)
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }
    return {title: found for title, found in programs.items() if found}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with saved_models/mlp/1, and its logits for three rows of ones."""
    from tfperf import export, get_net
    from tfperf.exports import Servable

    folder = tmp_path_factory.mktemp("readme")
    net = get_net("mlp", seed=0)
    export(net, folder / "saved_models")
    (logits,) = Servable.from_saved_model(folder / "saved_models" / "mlp" / "1").reference(
        [np.ones((3, 512), "float32")]
    )
    return folder, logits


def test_no_section_is_forgotten():
    titles = re.findall(r"^## (.*)$", README.read_text(), flags=re.MULTILINE)
    assert {title.split(",")[0] for title in titles} - set(sections()) == {"TensorFlow Serving"}


@pytest.mark.parametrize("title", sections())
@pytest.mark.timeout(400)
def test_a_program_prints_the_numbers_of_the_net(exported, title):
    folder, expected = exported
    output = ""
    for language, text in sections()[title]:
        if language in FILES:
            (folder / FILES[language]).write_text(text)
        if language in ("python", "sh"):
            output = run(folder, language) if language == "python" else run(folder, "sh", text)
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", output)]
    exact = title in ("Python", "C", "C++")
    np.testing.assert_allclose(np.reshape(numbers, (3, 2)), expected, rtol=1e-6 if exact else 1e-4)


WITHOUT_KERAS = """
import sys
sys.modules["keras"] = sys.modules["tfperf"] = None  # makes every import of them fail
{program}
np.save("bits.npy", logits)
"""


@pytest.mark.timeout(400)
def test_python_without_keras_gives_the_same_bits(exported):
    folder, expected = exported
    ((_, program),) = sections()["Python"]
    (folder / "program.py").write_text(WITHOUT_KERAS.format(program=program))
    run(folder, "python")
    np.testing.assert_array_equal(np.load(folder / "bits.npy"), expected)


def run(folder, language, text=""):
    """Run a program in the folder, with this Python first on the path; what it printed."""
    command = [sys.executable, "program.py"] if language == "python" else ["sh", "-ec", text]
    variables = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
