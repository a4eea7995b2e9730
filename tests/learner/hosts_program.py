"""Hosts that draw their own batches, and the process that drives them: `host INDEX PORT ...` or `coordinator`.

`coordinator DIRECTORY PORT ...` makes the dataset of each host on that host's device, as a TPU's strategy does, and
prints as JSON which rows each host has drawn, and the bytes of a batch. Ports may be those of proxies.
"""

import json
import sys

import tensorflow as tf

from tflearn.api import datasets
from tflearn.sampling import dataset_source

BATCH, WIDTH, NUM_BATCHES = 64, 4096, 5


def _hosts(ports):
    return {'worker': [f'127.0.0.1:{port}' for port in ports]}


def host(index, *ports):
    tf.distribute.Server(_hosts(ports), job_name='worker', task_index=int(index)).join()


def parse(record):
    """A row as wide as an image, whose first number is the record's."""
    return tf.fill((WIDTH,), tf.strings.to_number(record))


def coordinator(directory, *ports):
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(_hosts(ports)), job_name='chief')
    dataset_fn = datasets.of_tfrecord([f'{directory}/{i}.tfrecord' for i in range(4)], parse, BATCH)
    devices = [f'/job:worker/task:{i}/device:CPU:0' for i in range(len(ports))]
    iterators = []
    for i, device in enumerate(devices):
        with tf.device(device):
            context = tf.distribute.InputContext(len(ports), i, len(ports))
            iterators.append(iter(dataset_source.call(dataset_fn, context)))

    @tf.function
    def step():
        firsts = []
        for device, iterator in zip(devices, iterators, strict=True):
            with tf.device(device):
                batch = next(iterator)
                firsts.append(tf.reduce_mean(batch, axis=1))  # what leaves a host in place of the loss
        return firsts

    rows = [[] for _ in ports]
    for _ in range(NUM_BATCHES):
        for own, new in zip(rows, step(), strict=True):
            own += new.numpy().astype(int).tolist()
    sys.stdout.write(json.dumps({'rows': rows, 'batch_bytes': 4 * BATCH * WIDTH}) + '\n')
    sys.stdout.flush()


if __name__ == '__main__':
    {'host': host, 'coordinator': coordinator}[sys.argv[1]](*sys.argv[2:])
