"""Serves the policies that a run exports, by TensorFlow Serving's gRPC and REST interfaces.

Each in its newest version, or in those that tflearn promote has chosen. It needs the extra
`serving`. A model has the name of the policy's directory, such as `greedy_policy`.
"""

import os
import pathlib
import re
import threading
from typing import Any

from absl import flags

from tflearn.core import preflight, tokens, waiting
from tflearn.core.errors import UserValueError
from tflearn.core.verbs import values_of
from tflearn.files.run_dir import opened_run_dir

_GRACE_SECS = 5.0  # in which requests that are being answered end


def check() -> None:
    """Checks what can be checked without TensorFlow. Raises ValueError with a message that names the flag."""
    values = flags.FLAGS
    if wrong := [version for version in values.versions if not re.fullmatch('[0-9]{1,18}', version)]:
        raise UserValueError(f'got --versions={wrong[0]}; need train steps, such as --versions=1000,2000')
    if wrong := [policy for policy in values.policies if not re.fullmatch(r'\w[\w.-]*', policy)]:
        raise UserValueError(f'got --policies={wrong[0]}; need names of directories, such as --policies=greedy_policy')
    for flag in ('tls_certificate', 'tls_key', 'tls_client_ca', 'clients'):
        name: Any = values[flag].value
        if name and not pathlib.Path(name).is_file():
            raise UserValueError(f'got --{flag}={name}; need a file')
    if bool(values.tls_certificate) != bool(values.tls_key) or (values.tls_client_ca and not values.tls_key):
        raise UserValueError('got a part of --tls_certificate, --tls_key, --tls_client_ca; need the first two together')
    if values.apprentice and (values.versions or not values.decision_log):
        got = f'--versions={",".join(values.versions)}' if values.versions else 'no --decision_log'
        raise UserValueError(
            f'got --apprentice with {got}; need a --decision_log, from which it learns, and no --versions: it acts by '
            'itself once tflearn promote has made a version stable'
        )
    if values.allow_nonfinite and values.decision_log:
        raise UserValueError('got --allow_nonfinite with --decision_log, which holds no such numbers; need one of both')
    if 0 < values.lame_duck_secs > values.stop_timeout_secs - _GRACE_SECS:
        raise UserValueError(
            f'got --lame_duck_secs={values.lame_duck_secs:g} and --stop_timeout_secs={values.stop_timeout_secs:g}, '
            f'after which it is killed; need at least {_GRACE_SECS:g} s between them'
        )


def run(stop: threading.Event) -> None:
    """Runs the job with the flags of its program."""
    with waiting.may_exit(stop, lambda: None):  # nothing was begun
        preflight.import_quietly('tensorflow', 'gym')
        from tflearn.extensions.serving import serve  # After the flags are parsed: it loads TensorFlow.
        from tflearn.jobs.run import Run

    with opened_run_dir(flags.FLAGS.root_dir, 'serve') as run_dir:
        its_run = Run(run_dir, stop, connect_timeout_secs=flags.FLAGS.connect_timeout_secs)
        serve.serve(run=its_run, **_arguments())


def _arguments() -> dict[str, Any]:
    """Returns the arguments of the job, but for the run. It loads TensorFlow."""
    from tflearn.extensions.serving import serve

    values = flags.FLAGS
    names = ('max_batch_size', 'batch_timeout_micros', 'num_batch_threads', 'max_enqueued_batches')
    options = serve.ServeOptions(
        policies=tuple(values.policies),
        versions=tuple(map(int, values.versions)),
        batching=serve.BatchOptions(**values_of(values, *names)) if values.batching else None,
        max_rows=values.max_rows,
        poll_secs=values.poll_secs,
        clients=pathlib.Path(values.clients) if values.clients else None,
        num_threads=_num_threads(),
        max_concurrent_requests=values.max_concurrent_requests,
        exploration=serve.Exploration(values.epsilon, values.temperature),
        apprentice=values.apprentice,
        allow_nonfinite=values.allow_nonfinite,
        lame_duck_secs=values.lame_duck_secs,
    )
    trials = serve.TrialOptions(
        num_requests=values.trial_requests,
        max_error_share=values.trial_max_error_share,
        max_latency_secs=values.trial_max_latency_secs,
        outcome_margin=values.trial_outcome_margin,
        outcome_low=values.trial_outcome_low,
        outcome_high=values.trial_outcome_high,
        outcome_secs=values.trial_outcome_secs,
    )
    limits = values_of(values, 'host', 'port', 'max_request_bytes', 'max_connections')
    files = [pathlib.Path(name) for name in (values.tls_certificate, values.tls_key, values.tls_client_ca) if name]
    return {
        'server_options': serve.ServerOptions(**limits, tls=serve.TlsFiles(*files) if files else None),
        'options': options,
        'decision_log': serve.DecisionLogOptions(**_decision_log()) if values.decision_log else None,
        'trials': trials,
        **values_of(values, 'rest_port', 'metrics_port'),
    }


def _decision_log() -> dict[str, Any]:
    values = flags.FLAGS
    if bool(values.decision_log_hash) != bool(values.decision_log_key):
        raise UserValueError('got a part of --decision_log_hash and --decision_log_key; need both, or none')
    return {
        'directory': values.decision_log,
        'share': values.decision_log_share,
        'omitted': tuple(values.decision_log_omit),
        'hashed': tuple(values.decision_log_hash),
        'key': tokens.read(values.decision_log_key, '--decision_log_key') if values.decision_log_key else '',
        'file_secs': values.decision_log_file_secs,
        'keep_days': values.decision_log_keep_days,
    }


def _num_threads() -> int:
    values = flags.FLAGS
    if values.num_threads:
        return values.num_threads
    return values.num_batch_threads if values.batching else len(os.sched_getaffinity(0))
