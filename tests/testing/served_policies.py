"""Served policies for tests: complete versions of a linear policy, whose actions depend on the version."""

import contextlib
import functools
import threading

import numpy as np
import tensorflow as tf

from tests.testing import example_policies
from tflearn.policies.exporter import PolicyExporter

DEADLINE_SECS = 60.0
OBSERVATION = np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)


class Publisher:
    """Publishes versions of a policy whose action is 1 for observations above 0 if its step is odd, else for those
    below 0, so that an action has the parity of its version. The observation may be a part of a dict."""

    def __init__(self, root, name='greedy_policy', part=None):
        self.directory = root / name
        spec = tf.TensorSpec((4,), tf.float32, 'observation')
        self._linear = example_policies.Linear({part: spec} if part else spec, example_policies.DISCRETE_PAIR)
        self._exporter = PolicyExporter(self._linear.policy, self.directory, keep_last=2)

    def publish(self, step, weights=None):
        sign = 1.0 if step % 2 else -1.0
        self._linear.set(weights or [sign, 0, 0, 0])
        return self._exporter.export(step, {})


def agrees(observation, action, step):
    """Returns whether `action` is that of version `step`."""
    sign = 1.0 if step % 2 else -1.0
    return np.array_equal(action, (np.asarray(observation)[:, 0] * sign > 0).astype(np.int64))


@contextlib.contextmanager
def held(models):
    """Holds the computation of 'serving_default'. Yields two events: a computation has started; let it resume."""
    signature = models.get('greedy_policy').get().signature('serving_default')
    program, started, resume = signature._program, threading.Event(), threading.Event()

    def compute(inputs):
        started.set()
        assert resume.wait(DEADLINE_SECS)
        return program(inputs)

    signature._program = compute
    try:
        yield started, resume
    finally:
        resume.set()


@contextlib.contextmanager
def serving(root, batching=None, pinned=(), names=(), max_concurrent_requests=1024, allow_nonfinite=False, **options):
    """A server of the policies in `root`, on a free port. Yields it and its models."""
    # What only the extra of serving brings, which publishing does without.
    from tflearn.extensions.serving.models import Models
    from tflearn.extensions.serving.served_version import ServedVersion
    from tflearn.extensions.serving.server import PolicyServer
    from tflearn.net.server_options import ServerOptions

    load = functools.partial(ServedVersion, options=batching, allow_nonfinite=allow_nonfinite)
    models = Models(root, load, names, pinned)
    models.refresh()
    server = PolicyServer(models, ServerOptions(**options), max_concurrent_requests=max_concurrent_requests)
    try:
        yield server, models
    finally:
        server.close(0)
