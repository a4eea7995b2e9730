"""The flags of the serve program, and the options that they make."""

from __future__ import annotations

import os
import pathlib
import re
from typing import TYPE_CHECKING, Any

from absl import flags

from tflearn.core import tokens
from tflearn.core.errors import UserValueError

from . import job_flags

if TYPE_CHECKING:
    from tflearn.jobs import serve


# Concurrent calls while a batch waits for more requests.
_JOINING_CALLS = 16


def define() -> None:
    """Defines the flags of this job."""
    flags.DEFINE_string('host', 'localhost', "Name or address to listen at; '0.0.0.0' is all networks.")
    flags.DEFINE_integer('port', 8500, 'gRPC port; 0 picks a free one.', 0, 65535)
    flags.DEFINE_integer('rest_port', None, 'Port of REST over HTTP; none by default.', 1, 65535)
    flags.DEFINE_integer(
        'metrics_port', None, 'Port of http://HOST:PORT/metrics for Prometheus; none by default.', 1, 65535
    )
    flags.DEFINE_list('policies', [], 'Policies to serve, separated by commas; by default all that the run exports.')
    flags.DEFINE_list(
        'versions',
        [],
        'Train steps to serve, separated by commas; by default those that tflearn-promote chose, or the newest.',
    )
    flags.DEFINE_bool('batching', True, 'Compute requests that arrive at the same time as one batch.')
    flags.DEFINE_integer('max_batch_size', 64, 'Maximum number of observations in a batch.', 1)
    flags.DEFINE_integer(
        'batch_timeout_micros',
        0,
        'How long an incomplete batch waits for more requests [us]; 0: until a thread is free.',
        0,
    )
    flags.DEFINE_integer('num_batch_threads', 1, 'Number of batches that are computed at the same time.', 1)
    flags.DEFINE_integer('max_enqueued_batches', 100, 'Maximum number of waiting batches; further ones are refused.', 1)
    flags.DEFINE_integer(
        'num_threads',
        None,
        'Concurrent TensorFlow calls, each for all requests that wait at that time; with --nobatching for one. By '
        f'default --num_batch_threads; {_JOINING_CALLS} with --batch_timeout_micros; the cores with --nobatching.',
        1,
    )
    flags.DEFINE_integer(
        'max_concurrent_requests', 1024, 'Maximum number of concurrent requests; further ones are refused.', 1
    )
    flags.DEFINE_integer('max_request_bytes', 4 * 1024 * 1024, 'Maximum size of a request.', 1)
    flags.DEFINE_integer(
        'max_connections', 512, 'Maximum number of connections; beyond it the longest idle ones are closed.', 1
    )
    flags.DEFINE_integer('max_rows', 1024, 'Maximum number of observations in a request.', 1)
    job_flags.define_secs('poll_secs', 1.0, 'Seconds between two checks for new versions.', 0.01)
    flags.DEFINE_string('tls_certificate', None, 'PEM file of the server certificate; with --tls_key it enables TLS.')
    flags.DEFINE_string('tls_key', None, 'PEM file with the key of --tls_certificate.')
    flags.DEFINE_string(
        'tls_client_ca', None, 'PEM file of the authority of client certificates; clients without one are refused.'
    )
    flags.DEFINE_string(
        'clients', None, 'JSON file of the clients that are admitted, by token or certificate, with their quotas.'
    )
    _define_decisions()
    _define_trials()


def _define_trials() -> None:
    flags.DEFINE_integer('trial_requests', 200, 'Requests of a block in which a promoted version is judged.', 1)
    job_flags.define_number(
        'trial_max_error_share',
        0.05,
        "Share of a block's requests that may fail, else the version is taken back.",
        0.0,
        1.0,
    )
    job_flags.define_number(
        'trial_max_latency_secs', None, 'Seconds in which 99 % of a block have to be computed; by default any.', 1e-6
    )
    job_flags.define_number(
        'trial_outcome_margin',
        None,
        "How much less than the stable version's the mean reward of the canary's decisions may be, at the lower bound; "
        'by default outcomes are not looked at.',
        0.0,
    )
    flags.DEFINE_integer('trial_decisions', 1000, 'Decisions of both after which their rewards are compared.', 2)
    job_flags.define_secs('trial_outcome_secs', 60.0, 'Seconds after a decision in which its outcomes count.', 0.001)


def _define_decisions() -> None:
    job_flags.define_number('epsilon', 0.0, 'Share of actions drawn at random, of those that are legal.', 0.0, 1.0)
    job_flags.define_number('temperature', 1.0, 'Divides the logits of a policy that draws its actions.', 1e-6)
    flags.DEFINE_string('decision_log', None, 'Directory or URL of the files with all decisions; none by default.')
    job_flags.define_number('decision_log_share', 1.0, 'Share of the requests that are logged.', 0.0, 1.0)
    flags.DEFINE_list('decision_log_omit', [], 'Inputs that are not logged, separated by commas.')
    flags.DEFINE_list('decision_log_hash', [], 'Inputs of which a keyed hash is logged, separated by commas.')
    flags.DEFINE_string('decision_log_key', None, 'File with the key of --decision_log_hash, or env:NAME.')
    job_flags.define_secs('decision_log_file_secs', 60.0, 'Seconds after which a file of decisions is complete.', 0.1)
    job_flags.define_number('decision_log_keep_days', None, 'Days after which its files are deleted.', 0.0)


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


def serve_options() -> serve.ServeOptions:
    """Returns the options of what is served."""
    from tflearn.jobs import serve

    values = flags.FLAGS
    batching = _values('max_batch_size', 'batch_timeout_micros', 'num_batch_threads', 'max_enqueued_batches')
    return serve.ServeOptions(
        policies=tuple(values.policies),
        versions=tuple(map(int, values.versions)),
        batching=serve.BatchOptions(**batching) if values.batching else None,
        max_rows=values.max_rows,
        poll_secs=values.poll_secs,
        http=serve.HttpPorts(values.rest_port, values.metrics_port),
        clients=pathlib.Path(values.clients) if values.clients else None,
        num_threads=_num_threads(),
        max_concurrent_requests=values.max_concurrent_requests,
        exploration=serve.Exploration(values.epsilon, values.temperature),
    )


def decision_log() -> serve.DecisionLogOptions | None:
    """Returns the options of the log of decisions, if there is one."""
    from tflearn.jobs import serve

    values = flags.FLAGS
    if not values.decision_log:
        return None
    if bool(values.decision_log_hash) != bool(values.decision_log_key):
        raise UserValueError('got a part of --decision_log_hash and --decision_log_key; need both, or none')
    return serve.DecisionLogOptions(
        directory=values.decision_log,
        share=values.decision_log_share,
        omitted=tuple(values.decision_log_omit),
        hashed=tuple(values.decision_log_hash),
        key=tokens.read(values.decision_log_key, '--decision_log_key') if values.decision_log_key else '',
        file_secs=values.decision_log_file_secs,
        keep_days=values.decision_log_keep_days,
    )


def trials() -> serve.TrialOptions:
    """Returns when a version that was promoted is taken back."""
    from tflearn.jobs import serve

    values = flags.FLAGS
    return serve.TrialOptions(
        num_requests=values.trial_requests,
        max_error_share=values.trial_max_error_share,
        max_latency_secs=values.trial_max_latency_secs,
        outcome_margin=values.trial_outcome_margin,
        num_decisions=values.trial_decisions,
        outcome_secs=values.trial_outcome_secs,
    )


def server_options() -> serve.ServerOptions:
    """Returns the options of the server: its address and limits."""
    from tflearn.jobs import serve

    values = flags.FLAGS
    limits = _values('host', 'port', 'max_request_bytes', 'max_connections')
    files = [pathlib.Path(name) for name in (values.tls_certificate, values.tls_key, values.tls_client_ca) if name]
    return serve.ServerOptions(**limits, tls=serve.TlsFiles(*files) if files else None)


def _num_threads() -> int:
    values = flags.FLAGS
    if values.num_threads:
        return values.num_threads
    if not values.batching:
        return len(os.sched_getaffinity(0))
    # A second concurrent call would take its requests out of the next batch.
    return _JOINING_CALLS if values.batch_timeout_micros else values.num_batch_threads


def _values(*names: str) -> dict[str, Any]:
    return {name: flags.FLAGS[name].value for name in names}
