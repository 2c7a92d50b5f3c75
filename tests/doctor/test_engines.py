"""Engines are optional: installed, or a note with the line that installs them."""

from tfperf.doctor import State, engines


def test_what_is_not_there_is_a_note(versions):
    versions()
    findings = engines.look()
    assert [finding.subject for finding in findings] == ["LiteRT", "ONNX Runtime", "tf2onnx", "OpenVINO"]
    assert {finding.state for finding in findings} == {State.NOTE}
    packages = [finding.mend.split()[-1] for finding in findings]
    assert packages == ["ai-edge-litert", "onnxruntime", "tf2onnx", "openvino"]


def test_any_of_the_packages_that_hold_an_engine_will_do(versions):
    versions(onnxruntime_gpu="1.31.0", ai_edge_litert="2.3.0")
    litert, onnx, *_ = engines.look()
    assert (litert.state, litert.found) == (State.OK, "ai-edge-litert 2.3.0 is installed")
    assert (onnx.state, onnx.found) == (State.OK, "onnxruntime-gpu 1.31.0 is installed")


def test_a_hostile_version_is_just_text(versions):
    versions(openvino="[bold]\x1b]0;x\x07")
    assert engines.look()[-1].found == "openvino [bold]\\x1b]0;x\\x07 is installed"
