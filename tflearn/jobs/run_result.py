"""How a run ends, or a job is stopped: why, and what others read of it. What train and synchronous share."""

import contextlib
from collections.abc import Callable, Iterator

from absl import logging

from tflearn.learner.stop_conditions import StopConditions
from tflearn.run_dir import RunDir, Status, read_json, write_json
from tflearn.waiting import Stopped


def is_done(run_dir: RunDir) -> bool:
    """Returns whether the run has reached its end, and logs it."""
    line = run_dir.done_line()
    if line is not None:
        logging.info(line)
    return line is not None


def reason(
    run_dir: RunDir, stop_conditions: StopConditions, train_step: int, env_steps: int, secs: float
) -> str | None:
    """Returns why training is over: a requested stop, or a stop condition; None while it goes on."""
    request = read_json(run_dir.stop_request)
    if request is not None:
        return str(request.get('reason', 'stop requested'))
    return stop_conditions.reached(train_step, env_steps, secs)


def write_result(run_dir: RunDir, why: str, train_step: int, env_steps: int, secs: float) -> None:
    """Writes the run's result, after which the run writes nothing else."""
    result = {'reason': why, 'train_step': train_step, 'env_steps': env_steps, 'seconds': round(secs, 1)}
    write_json(run_dir.train_result, result)
    logging.info('finished: %s, at train step %d, %d environment steps', why, train_step, env_steps)


@contextlib.contextmanager
def stopped_status(run_dir: RunDir) -> Iterator[Callable[[], None]]:
    """Gives a function that sets the job's status to 'stopped'; does so itself if the block raises Stopped."""
    status = Status(run_dir.status('train'), 'train')
    try:
        yield lambda: status.update('stopped')
    except Stopped:
        status.update('stopped')
