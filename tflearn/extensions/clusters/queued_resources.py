"""Cloud TPU's queued resources: a run on a TPU VM, which Google Cloud makes as soon as it has one.

The VM's startup script runs on each of its hosts at each start. On the first host it supervises all
jobs of the run (`supervise`), which go on after maintenance. Of several hosts each runs TensorFlow's
server, by which the learner on the first one drives them. Unproven: it was rendered, and submitted
to a program that recorded it.
"""

import dataclasses
import re
import shlex
from collections.abc import Sequence

from tflearn.core.errors import UserValueError
from tflearn.extensions.clusters import places
from tflearn.files.run_dir import RunDir, write_atomically, write_json
from tflearn.launch.reports import write_commands
from tflearn.launch.topology import Topology

_STARTUP_FILE = 'startup.sh'
_RUNTIMES = {
    'v5litepod': 'v2-alpha-tpuv5-lite',
    'v5p': 'v2-alpha-tpuv5',
    'v6e': 'v2-alpha-tpuv6e',
}
_OLDER = 'tpu-ubuntu2204-base'  # of v4 and older
_ONE_HOST = 8  # cores or chips, as each kind's sizes count
# Google's own versions for several hosts start it by themselves, and have no such command.
_SERVER = 'command -v start_grpc_tpu_worker && start_grpc_tpu_worker &\n'
_STARTUP = """\
#!/bin/bash
set -u
metadata=http://metadata.google.internal/computeMetadata/v1/instance/attributes
{setup}{server}if [[ $(curl -s -H Metadata-Flavor:Google "$metadata/agent-worker-number") == 0 ]]; then
  for job in {jobs}; do
    {supervise} --job="$job" >>{logs}/tpu_"$job".log 2>&1 &
  done
fi
wait
"""


@dataclasses.dataclass(frozen=True)
class QueuedResourcesOptions:
    """What Google Cloud is told besides the run.

    Attributes:
      zone: where the TPU is; needed.
      accelerator_type: the TPU's kind and size.
      runtime_version: the software of its VM; '' is Google's for that kind, without TensorFlow.
      project: who pays; '' is gcloud's own default.
      gcloud: further options of gcloud, such as '--spot'.
      setup: shell commands that come first on each host of the VM: they mount the run directory, and
        install or activate what the jobs need.
      python: the Python on the VM that has this package.
    """

    zone: str = ''
    accelerator_type: str = 'v4-8'
    runtime_version: str = ''
    project: str = ''
    gcloud: str = ''
    setup: str = ''
    python: str = 'python3'


def read_options(texts: Sequence[str]) -> QueuedResourcesOptions:
    """Returns the options of 'name=value' texts; see `places.read_options`."""
    return places.read_options(QueuedResourcesOptions, texts)


def render(topology: Topology, run_dir: RunDir, package: str, options: QueuedResourcesOptions) -> str:
    """Returns what `submit` runs, and the startup script of the VM."""
    _on_vm(topology, run_dir, options)
    return f'# {shlex.join(_command(run_dir, options))}\n{_startup(topology, run_dir, package, options)}'


def submit(topology: Topology, run_dir: RunDir, package: str, options: QueuedResourcesOptions) -> str:
    """Asks for the TPU VM. Returns how to watch and to stop it; one sentence each line.

    Raises:
      ValueError: if the run cannot be on one VM, or no zone is given.
      RuntimeError: if Google Cloud refuses, as it does while there is a queued resource of that
        name.
    """
    on_vm = _on_vm(topology, run_dir, options)
    run_dir.make()
    if done := run_dir.done_line():
        return done
    write_commands(run_dir, on_vm)
    places.save(on_vm, run_dir)
    run_dir.logs.mkdir(parents=True, exist_ok=True)
    write_atomically(run_dir.root / _STARTUP_FILE, _startup(on_vm, run_dir, package, options))
    places.output(_command(run_dir, options))
    name = places.run_name(run_dir)
    write_json(run_dir.submitted, {'queued_resources': name})
    where = shlex.join([name, *_where(options)])
    return '\n'.join(
        [
            f'Asked for {options.accelerator_type}: the queued resource {name}.',
            f'  see it        gcloud compute tpus queued-resources describe {where}',
            f'  the logs      {run_dir.logs}',
            f'  stop the run  gcloud compute tpus queued-resources delete {where} --force  (then the same command '
            'continues)',
        ]
    )


def _on_vm(topology: Topology, run_dir: RunDir, options: QueuedResourcesOptions) -> Topology:
    """Returns the topology with the commands of the VM."""
    if not options.zone:
        raise UserValueError(
            'got no zone for --backend=queued_resources; need --backend_option=zone=us-central2-b, say'
        )
    kind, size = _kind_and_size(options)
    if kind == 'v6e' and size > _ONE_HOST:
        raise UserValueError(
            f'got accelerator_type={options.accelerator_type}, of several hosts, whose server in TensorFlow 2.20 knows '
            f'no v6e; need v6e-{_ONE_HOST} or smaller, or another kind'
        )
    strategy = 'tpu:local' if size <= _ONE_HOST else f'tpu:{places.run_name(run_dir)}'
    commands = places.on_tpu(topology, strategy).with_commands(lambda job: (options.python, *job.command[1:]))
    return dataclasses.replace(commands, warm_parent=None)


def _kind_and_size(options: QueuedResourcesOptions) -> tuple[str, int]:
    """Returns the kind of TPU and its size, in cores or chips as Google counts those of that kind."""
    match = re.fullmatch(r'(v\d+[a-z]*)-(\d+)', options.accelerator_type)
    if not match:
        raise UserValueError(
            f"got accelerator_type={options.accelerator_type}; need a TPU's kind and size, such as v4-8 or "
            'v5litepod-8; see gcloud compute tpus accelerator-types list'
        )
    return match[1], int(match[2])


def _startup(topology: Topology, run_dir: RunDir, package: str, options: QueuedResourcesOptions) -> str:
    return _STARTUP.format(
        setup=f'{options.setup}\n' if options.setup else '',
        server=_SERVER if _kind_and_size(options)[1] > _ONE_HOST else '',
        jobs=' '.join(job.name for job in topology.jobs),
        supervise=shlex.join([options.python, '-m', f'{package}.supervise', f'--root_dir={run_dir.root}']),
        logs=shlex.quote(str(run_dir.logs)),
    )


def _command(run_dir: RunDir, options: QueuedResourcesOptions) -> list[str]:
    name = places.run_name(run_dir)
    return [
        *('gcloud', 'compute', 'tpus', 'queued-resources', 'create', name, f'--node-id={name}', *_where(options)),
        f'--accelerator-type={options.accelerator_type}',
        f'--runtime-version={options.runtime_version or _RUNTIMES.get(_kind_and_size(options)[0], _OLDER)}',
        *shlex.split(options.gcloud),
        f'--metadata-from-file=startup-script={run_dir.root / _STARTUP_FILE}',
    ]


def _where(options: QueuedResourcesOptions) -> list[str]:
    return [f'--zone={options.zone}', *([f'--project={options.project}'] if options.project else [])]
