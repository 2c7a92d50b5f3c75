import tempfile

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 28, 28, 1), np.uint8)


def record_of(image, label):
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


with tempfile.TemporaryDirectory() as folder:
    files = [f"{folder}/{number}.tfrecord" for number in range(3)]
    for number, file in enumerate(files):
        with tf.io.TFRecordWriter(file) as writer:
            for label in range(number, 12, 3):
                writer.write(record_of(IMAGES[label], label))
    np.testing.assert_array_equal(decode(record_of(IMAGES[5], 5))[0], IMAGES[5])
    assert tuned(files, 5, 2).element_spec[0].shape.as_list() == [None, 28, 28, 1]  # what `fit` traces a net for
    orders = set()
    for pipeline in (naive(files, 5), *[tuned(files, 5, 2)] * 9, *one_change_at_a_time(files, 5, 2).values()):
        labels, images = [], []
        for batch, batch_labels in pipeline:
            images.extend(batch.numpy())
            labels.extend(batch_labels.numpy())
        orders.add(tuple(labels))
        assert sorted(labels) == list(range(12))
        np.testing.assert_array_equal(images, scale(IMAGES[labels], labels)[0])
    assert len(orders) > 2  # the tuned pipeline shuffles, anew in each epoch
    assert naive(files, 5).element_spec == tuned(files, 5, 2).element_spec
