"""The serve job: serves a run's exported policies over gRPC and REST,
as TensorFlow Serving does.
"""

import contextlib
import dataclasses
import functools
import gc
import pathlib
import threading
import time
from collections.abc import Callable

from absl import logging

from tflearn.core import side_tasks
from tflearn.core.errors import UserTimeoutError
from tflearn.core.settings import NonNegativeFloat, PositiveFloat, PositiveInt, checked_dataclass
from tflearn.core.waiting import LOG_EVERY_SECS
from tflearn.extensions.serving.clients import Clients
from tflearn.extensions.serving.decision_files import DecisionLogOptions
from tflearn.extensions.serving.decision_log import DecisionLog
from tflearn.extensions.serving.exploration import Exploration
from tflearn.extensions.serving.models import Models
from tflearn.extensions.serving.rest import RestServer
from tflearn.extensions.serving.served_version import BatchOptions, ServedVersion
from tflearn.extensions.serving.server import PolicyServer, ServingMetrics
from tflearn.extensions.serving.trials import TrialOptions, Trials
from tflearn.files.run_dir import RunDir, write_atomically
from tflearn.files.status import Status
from tflearn.jobs.run import Run
from tflearn.net import metrics_server
from tflearn.net.server_options import LOCAL_HOSTS, ServerOptions
from tflearn.net.tls import TlsFiles
from tflearn.policies.states import SHADOW

# Includes the types of the job's arguments.
__all__ = [
    'BatchOptions',
    'DecisionLogOptions',
    'Exploration',
    'ServeOptions',
    'ServerOptions',
    'TlsFiles',
    'TrialOptions',
    'serve',
]


_STATES_SECS = 0.25  # between two looks at `policies.states`, whose changes answer within a second


@checked_dataclass(frozen=True)
class ServeOptions:
    """Which policies are served, and how.

    Attributes:
      policies: the names of the policies; () serves all that the run exports.
      versions: the train steps to serve; () follows `policies.states`, or serves each policy's
        newest version.
      batching: how requests become batches; None computes each request by itself.
      max_rows: the maximum batch size of a request. Without `batching` 16 times as many rows may
        wait.
      poll_secs: seconds between two polls for new versions.
      clients: the JSON file of the clients that are admitted, see `serving.clients`; None admits
        everybody.
      num_threads: TensorFlow calls at the same time, each with one request or more.
      max_concurrent_requests: requests accepted at the same time, waiting ones included; the server
        rejects more.
      exploration: what is served besides the policies' own actions.
      apprentice: whether decisions are answered by the product's own choice until a version is
        promoted.
      allow_nonfinite: whether observations and policy states may have NaN and infinities.
      lame_duck_secs: how long requests are still answered when the server is stopped, while its
        health says no more.
    """

    policies: tuple[str, ...] = ()
    versions: tuple[int, ...] = ()
    batching: BatchOptions | None = None
    max_rows: PositiveInt = 1024
    poll_secs: PositiveFloat = 1.0
    clients: pathlib.Path | None = None
    num_threads: PositiveInt = 1
    max_concurrent_requests: PositiveInt = 1024
    exploration: Exploration = Exploration()
    apprentice: bool = False
    allow_nonfinite: bool = False
    lame_duck_secs: NonNegativeFloat = 0.0


def serve(
    *,
    run: Run,
    server_options: ServerOptions,
    options: ServeOptions,
    decision_log: DecisionLogOptions | None = None,
    trials: TrialOptions | None = None,
    rest_port: int | None = None,
    metrics_port: int | None = None,
) -> None:
    """Serves a run's exported policies until it is stopped,
    including versions that the train job exports meanwhile.

    It also writes the files with which TensorFlow Serving does the same: `RunDir.serving_models`,
    `serving_batching`.

    Args:
      run: the run; only the status and these two files are written to its directory. It waits as
        long as for other jobs for the first version of each policy named in `options`; of any
        policy if none is named. Until then the server answers that there is none.
      server_options: the address, and the limits of requests.
      options: the served policies, and how they are served.
      decision_log: what is logged of the decisions, and where; None logs none.
      trials: when a version that was promoted is taken back; None has the defaults.
      rest_port: the port of REST; None is no such server.
      metrics_port: the port of the metrics for Prometheus; None is no such server.

    Raises:
      TimeoutError: if there is no such version in time.
      ValueError: if the port is in use, or for invalid arguments, TLS files or a file of clients.
    """
    # What is loaded by now: else it is searched for garbage again and again, and requests wait for
    # that.
    gc.freeze()
    load = functools.partial(
        ServedVersion,
        options=options.batching,
        max_rows=options.max_rows,
        exploration=options.exploration,
        hidden=(*decision_log.omitted, *decision_log.hashed) if decision_log else (),
        apprentice=options.apprentice,
        allow_nonfinite=options.allow_nonfinite,
    )
    models = Models(run.dir.policies, load, options.policies, options.versions)
    metrics = ServingMetrics(models)
    clients = Clients(options.clients, metrics.record_refused) if options.clients else None
    limits = options.num_threads, options.max_concurrent_requests
    if not run.dir.root.exists():  # one that exists may be read-only for this job
        run.dir.make()
    log = DecisionLog(decision_log, run.dir.decisions, metrics.record_logged) if decision_log else None
    watched = Trials(trials or TrialOptions(), _shadow_log(decision_log, run.dir, metrics), metrics.record_logged)
    server = PolicyServer(models, server_options, metrics, clients, log, *limits, watched)
    status = run.status('serve')
    # Calls all of them, the last one first, even if some fail.
    with contextlib.ExitStack() as ending:
        ending.callback(status.update, 'stopped')
        ending.callback(watched.close)
        if log:
            ending.callback(log.close)
        ending.callback(server.close)
        if rest_port is not None:
            at = dataclasses.replace(server_options, port=rest_port)
            ending.enter_context(contextlib.closing(RestServer(server, at)))
        if metrics_port is not None:
            given = metrics.registry, server_options.host, metrics_port, '--metrics_port', lambda: server.ready
            ending.enter_context(contextlib.closing(metrics_server.serve(*given)))
        if clients and clients.have_tokens and not server_options.tls and server_options.host not in LOCAL_HOSTS:
            logging.warning("the clients' tokens travel unencrypted; need --tls_certificate and --tls_key on a network")
        logging.info('listens at %s:%d; policies in %s', server_options.host, server.port, run.dir.policies)
        _follow(models, server, watched, status, run, options)
        server.drain()
        if options.lame_duck_secs:
            logging.info('is not ready from now on, and answers for %g s more', options.lame_duck_secs)
            threading.Event().wait(options.lame_duck_secs)  # a second signal ends the process


def _shadow_log(
    options: DecisionLogOptions | None, run_dir: RunDir, metrics: ServingMetrics
) -> Callable[[], DecisionLog] | None:
    """Returns what makes the log of shadows' answers, beside the decisions,
    where no outcome is joined with them.
    """
    if options is None:
        return None
    beside = dataclasses.replace(options, directory=f'{options.directory.rstrip("/")}/{SHADOW}')
    count = lambda kind, result, number: metrics.record_logged('shadows', result, number)  # noqa: E731
    return lambda: DecisionLog(beside, run_dir.decisions / SHADOW, count)


def _follow(
    models: Models,
    server: PolicyServer,
    trials: Trials,
    status: Status,
    run: Run,
    options: ServeOptions,
) -> None:
    run_dir, start = run.dir, time.monotonic()
    next_log, is_config_due = start, False
    # A directory that may not be read is refused at the start. Later it may be a disk that comes back.
    run_dir.policies.exists()
    while not run.stop.is_set():
        if models.refresh():
            is_config_due = True
            with side_tasks.guarded('report the health of policies'):
                server.reloaded()
        if is_config_due:
            is_config_due = not _write_serving_config(run_dir, models, options)
        for holder in models.holders:
            with side_tasks.guarded(f'check the trial of {holder.name}'):
                trials.check(holder, run_dir.policy(holder.name))
        missing, now = models.missing, time.monotonic()
        awaited = missing or [holder.name for holder in models.holders if holder.awaited]
        what = f'a version of {", ".join(awaited)} in {run_dir.policies}'
        # Only required policies: one that is not named must not end the service of the others.
        if missing and now - start > run.connect_timeout_secs:
            raise UserTimeoutError(f'timed out after {now - start:.0f} s waiting for {what}')
        if awaited and now >= next_log:
            next_log = now + LOG_EVERY_SECS
            with side_tasks.guarded(f'look for {run_dir.policies}'):
                more = '' if run_dir.policies.exists() else ', which does not exist yet'
                logging.info('waiting for %s%s', what, more)
        served: dict[str, float | None] = {
            f'{holder.name}_version': holder.get().version for holder in models.holders if holder.ready
        }
        served |= server.agreement()
        status.update('waiting for a policy' if missing else 'running', port=server.port, **served)
        run.stop.wait(min(options.poll_secs, _STATES_SECS) if models.have_states else options.poll_secs)


def _write_serving_config(run_dir: RunDir, models: Models, options: ServeOptions) -> bool:
    """Returns whether it could: the run directory may be read-only for this job."""
    with side_tasks.guarded(f'write to {run_dir.serving_models.parent}'):
        write_atomically(run_dir.serving_models, models.serving_config())
        write_atomically(run_dir.serving_batching, (options.batching or BatchOptions()).serving_config())
        return True
    return False
