"""What lets Horovod 0.28.1 compile against TensorFlow's headers as they are now, without a change of its source.

Its xla_mpi_ops.cc includes files below `tensorflow/compiler/xla/`. XLA's headers lie below `xla/` now. TensorFlow's
wheel holds a copy in the old place, but what has moved within XLA since is not where Horovod looks: headers of one
line, which include the new place, stand there instead. Two names that a build for GPUs uses are gone; what they meant
stands in such a header too.
"""

from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build.tensorflow_here import TensorFlowHere

__all__ = ["include_folders", "write_forwarding_headers"]

BUILDER = "client/xla_builder.h"
"""The first of them that Horovod includes."""

MOVED = {
    BUILDER: ("hlo/builder/xla_builder.h", "client/xla_builder.h"),
    "service/custom_call_target_registry.h": ("service/custom_call_target_registry.h",),
    "service/hlo.pb.h": ("service/hlo.pb.h",),
    "shape.h": ("shape.h",),
    "xla_data.pb.h": ("xla_data.pb.h",),
}
"""Name below `tensorflow/compiler/xla/` -> names below `xla/` where it may lie now, newest first."""

STREAM = "stream_executor/stream.h"
"""Below `tensorflow/compiler/xla/`: mpi_ops.cc includes it for GPUs, right after it declares the function below."""

STREAM_VALUE = """\
#pragma once
#include "xla/stream_executor/stream.h"
namespace stream_executor::gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
}
"""
"""The function that gives CUDA's stream, which TensorFlow 2.21's libraries no longer have."""

STATUS_OR = """\
#include "absl/status/statusor.h"
namespace xla { template <typename T> using StatusOr = ::absl::StatusOr<T>; }
"""
"""The name that the part for GPUs uses, gone since TensorFlow 2.19 together with its header `xla/statusor.h`."""

INCLUDED_BY_TENSORFLOW = ("external/highwayhash", "external/farmhash_archive/src")
"""Folders of TensorFlow's `include/` from which its own headers include, though they are not on its path."""


def write_forwarding_headers(tensorflow: TensorFlowHere, folder: Path, *, gpu: bool) -> None:
    """Write into `folder` the headers that TensorFlow no longer has where Horovod includes them.

    Args:
        tensorflow: the one to compile against.
        folder: it has to come before TensorFlow's own on the path of quoted includes, that is: -iquote.
        gpu: whether the build is for GPUs.

    Raises:
        HorovodError: this TensorFlow has one of them in no place that is known here.
    """
    for old, candidates in MOVED.items():
        if (tensorflow.include / "tensorflow/compiler/xla" / old).exists():
            continue
        new = next((name for name in candidates if (tensorflow.include / "xla" / name).exists()), None)
        if new is None:
            raise HorovodError(
                f"expected xla/{candidates[0]} among TensorFlow's headers, but {tensorflow.distribution} "
                f"{tensorflow.version} has none; Horovod 0.28.1 cannot be built for it: use TensorFlow 2.21"
            )
        header = folder / "tensorflow/compiler/xla" / old
        header.parent.mkdir(parents=True, exist_ok=True)
        without_status = old == BUILDER and not (tensorflow.include / "xla/statusor.h").exists()
        header.write_text(f'#include "xla/{new}"\n{STATUS_OR if without_status else ""}', encoding="utf-8")
    if gpu:
        (folder / "tensorflow/compiler/xla" / STREAM).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tensorflow/compiler/xla" / STREAM).write_text(STREAM_VALUE, encoding="utf-8")


def include_folders(tensorflow: TensorFlowHere) -> list[Path]:
    """The folders of TensorFlow that Horovod's compilation needs on its include path, beside the one it finds."""
    folders = [tensorflow.include / name for name in INCLUDED_BY_TENSORFLOW]
    return [folder for folder in folders if folder.is_dir()]
