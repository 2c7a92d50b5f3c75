"""TFRecord files made of a data set: what an input pipeline reads."""

from pathlib import Path

from tfperf.data.dataset import Dataset
from tfperf.errors import DataError

__all__ = ["write_records"]


def write_records(data: Dataset, folder: Path | str, *, files: int = 8) -> list[str]:
    """Write the train images as PNG, with their labels, into TFRecord files that are about equally large.

    Image k goes into file k modulo `files`. Each record is a `tf.train.Example` with the features "image" (the bytes
    of a PNG) and "label" (one int64).

    Args:
        data: whose train images have 1, 3 or 4 channels.
        folder: an existing folder; files of the same names there are replaced.
        files: how many to write.

    Returns:
        Their paths, in order of their first images.

    Raises:
        ValueError: there are fewer images than files, or fewer than one file.
        DataError: TensorFlow cannot encode the images, or not write into the folder.
    """
    import tensorflow as tf

    if not 1 <= files <= len(data.train_images):
        raise ValueError(f"expected files from 1 to {len(data.train_images)}, the images. Received: files={files}")
    paths = [str(Path(folder, f"train-{number:05}-of-{files:05}.tfrecord")) for number in range(files)]
    try:
        for number, path in enumerate(paths):
            with tf.io.TFRecordWriter(path) as writer:
                examples = zip(data.train_images[number::files], data.train_labels[number::files], strict=True)
                for image, label in examples:
                    features = {
                        "image": tf.train.Feature(
                            bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])
                        ),
                        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                    }
                    example = tf.train.Example(features=tf.train.Features(feature=features))
                    writer.write(example.SerializeToString())
    except tf.errors.OpError as error:
        raise DataError(f"cannot write the images of {data.name} into {folder}: {error.message}") from error
    return paths
