"""How a run ends: why, and the result that says so to evaluate. What train and in_step share."""

from absl import logging

from tflearn.learner.limits import Limits
from tflearn.run_dir import RunDir, read_json, write_json


def reason(run_dir: RunDir, limits: Limits, train_step: int, env_steps: int, secs: float) -> str | None:
    """Says why training is over: a stop was requested, or a limit is reached; None while it is not."""
    request = read_json(run_dir.stop_request)
    if request is not None:
        return str(request.get('reason', 'stop requested'))
    return limits.reached(train_step, env_steps, secs)


def write_result(run_dir: RunDir, why: str, train_step: int, env_steps: int, secs: float) -> None:
    """Writes the run's result: nothing more will come after that."""
    result = {'reason': why, 'train_step': train_step, 'env_steps': env_steps, 'seconds': round(secs, 1)}
    write_json(run_dir.train_result, result)
    logging.info('finished: %s, at train step %d, %d environment steps', why, train_step, env_steps)
