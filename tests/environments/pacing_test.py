import functools
import re
import sys
import threading
import time

import numpy as np

from tests import fakes
from tests.environments import conformance
from tflearn.environments import gymnasium_env, pacing


def test_conforms():
    make = functools.partial(gymnasium_env.make, 'CartPole-v1', vectorization='in_process')
    conformance.check(functools.partial(pacing.make, make_environment=make, unroll_step_interval_secs=1e-4), 100)


def test_steps_are_an_interval_apart():
    environment = pacing.make(2, 0, fakes.make_environment, unroll_step_interval_secs=0.02)
    start = time.monotonic()
    environment.reset()
    times = []
    for _ in range(10):
        environment.step(np.zeros(2, np.int64))
        times.append(time.monotonic() - start)
    # Delays of the machine only add to the intervals.
    assert all(elapsed >= 0.02 * (i + 1) for i, elapsed in enumerate(times))


def test_overruns_are_counted_and_not_compensated(caplog):
    environment = pacing.make(2, 0, fakes.make_environment, unroll_step_interval_secs=0.05)
    environment.reset()
    assert environment.num_overruns == 0
    start = time.monotonic()
    while time.monotonic() < start + 0.12:  # a slow policy
        pass
    environment.step(np.zeros(2, np.int64))
    assert environment.num_overruns == 1
    assert float(re.search(r'step came ([\d.]+) ms late \(overrun 1\)', caplog.text)[1]) > 69
    environment.step(np.zeros(2, np.int64))
    assert time.monotonic() >= start + 0.12 + 0.05  # delays of the machine only add to that


def test_a_late_wake_up_is_an_overrun_too():
    """Another thread keeps the interpreter's lock, and gives it only after 60 ms."""
    made, started, done = fakes.make_environment(2, 0), [], threading.Event()
    step = made.step
    made.step = lambda action: (started.append(time.monotonic()), step(action))[1]

    def keep_busy():
        while not done.is_set():
            pass

    environment = pacing.PacedEnvironment(made, 0.03)
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.06)
    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        environment.reset()
        for _ in range(10):
            environment.step(np.zeros(2, np.int64))
    finally:
        sys.setswitchinterval(before)
        done.set()
        busy.join()
    assert environment.num_overruns > 0
    assert min(np.diff(started)) >= 0.9 * 0.03, 'no step follows another one too early'


def test_the_time_of_a_reset_is_no_overrun():
    """Somebody puts things back in their places, or another job has the robot meanwhile."""
    made = fakes.make_environment(2, 0)
    environment, step, lasts = pacing.PacedEnvironment(made, 1.0), made.step, []

    def slow_reset(action):
        time_step = step(action)
        if 0 in time_step.step_type:
            threading.Event().wait(1.2)
            lasts.append(time.monotonic())
        return time_step

    made.step = slow_reset
    environment.reset()
    environment._due = 0.0  # what comes before is of no interest here
    while not lasts:
        environment.step(np.zeros(2, np.int64))
        if not lasts:
            environment._due = 0.0
    assert environment._due >= lasts[0] + 1.0, 'an interval after the reset, not after its beginning'


def test_passes_everything_else_through():
    made = fakes.make_environment(2, 0)
    environment = pacing.PacedEnvironment(made, 1e-3)
    made.info, made.num_rebuilt = {'x': np.zeros(2)}, 3
    assert environment.info is made.info
    assert environment.num_rebuilt == 3
    environment.close()
    assert made.closed
