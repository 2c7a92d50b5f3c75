"""Requests that TensorFlow Serving runs before a version takes its first user's.

A TFRecord file of `tensorflow.serving.PredictionLog`, at most 1,000 of them, in `assets.extra`. Source:
https://www.tensorflow.org/tfx/serving/saved_model_warmup; the messages are in tensorflow_serving/apis
(prediction_log.proto, predict.proto, model.proto).
"""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tfperf.exports.manifest import EXTRA

__all__ = ["WARM_UP", "write_requests"]

WARM_UP = f"{EXTRA}/tf_serving_warmup_requests"

_BYTES, _STRING, _MESSAGE = (
    getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name}") for name in ("BYTES", "STRING", "MESSAGE")
)

# Message -> fields: name, number, type. The parts of the three .proto files that a request to predict uses. A tensor is
# declared as bytes, which is how a message inside a message travels.
_MESSAGES: dict[str, list[tuple[str, int, Any]]] = {
    "PredictionLog": [("predict_log", 6, "PredictLog")],
    "PredictLog": [("request", 1, "PredictRequest")],
    "PredictRequest": [("model_spec", 1, "ModelSpec"), ("inputs", 2, ["Input"])],
    "ModelSpec": [("name", 1, _STRING), ("signature_name", 3, _STRING)],
    "Input": [("key", 1, _STRING), ("value", 2, _BYTES)],  # an entry of map<string, TensorProto>
}


def write_requests(folder: Path, name: str, signature_name: str, requests: Iterable[Mapping[str, Any]]) -> None:
    """Write the warm-up requests of one version.

    Args:
        folder: of the version.
        name: of the net, as it is served.
        requests: input name -> array, for each request.
    """
    make = _messages()
    with tf.io.TFRecordWriter(str(folder / WARM_UP)) as writer:
        for request in requests:
            inputs = [
                make["Input"](key=key, value=tf.make_tensor_proto(array).SerializeToString())
                for key, array in request.items()
            ]
            spec = make["ModelSpec"](name=name, signature_name=signature_name)
            log = make["PredictLog"](request=make["PredictRequest"](model_spec=spec, inputs=inputs))
            writer.write(make["PredictionLog"](predict_log=log).SerializeToString())


@functools.cache
def _messages() -> dict[str, Any]:
    """The classes of the messages, in a pool of their own, apart from tensorflow-serving-api's."""
    file = descriptor_pb2.FileDescriptorProto(name="tfperf/warm_up.proto", package="tfperf", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            entry = message.field.add(name=field, number=number, label=3 if isinstance(kind, list) else 1)
            kind = kind[0] if isinstance(kind, list) else kind
            if isinstance(kind, str):
                entry.type, entry.type_name = _MESSAGE, f".tfperf.{kind}"
            else:
                entry.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tfperf.{name}")) for name in _MESSAGES}
