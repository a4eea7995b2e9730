"""Cloud TPU's queued resources: a run on a TPU VM, which Google Cloud makes as soon as it has one.

The VM's startup script runs on each of its hosts at each start. On the first host it supervises all
jobs of the run (`supervise`), which go on after maintenance. Unproven: it was rendered, and
submitted to a program that recorded it.
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
_LOCAL = 'tpu:local'
_ONE_HOST = 8  # cores or chips, as each kind's sizes count
_STARTUP = """\
#!/bin/bash
set -u
metadata=http://metadata.google.internal/computeMetadata/v1/instance/attributes
[[ $(curl -s -H Metadata-Flavor:Google "$metadata/agent-worker-number") == 0 ]] || exit 0
{setup}for job in {jobs}; do
  {supervise} --job="$job" >>{logs}/tpu_"$job".log 2>&1 &
done
wait
"""


@dataclasses.dataclass(frozen=True)
class QueuedResourcesOptions:
    """What Google Cloud is told besides the run.

    Attributes:
      zone: where the TPU is; needed.
      accelerator_type: the TPU's kind and size.
      runtime_version: the software of its VM; the default is Google's for v4 and older, without
        TensorFlow.
      project: who pays; '' is gcloud's own default.
      gcloud: further options of gcloud, such as '--spot'.
      setup: shell commands that come first on the VM: they mount the run directory, and install
        what the jobs need.
      python: the Python on the VM that has this package.
      strategy: the train job's: 'tpu:local' for a VM of one host, 'tpu' with TPU_NAME in `setup`
        for several.
    """

    zone: str = ''
    accelerator_type: str = 'v4-8'
    runtime_version: str = 'tpu-ubuntu2204-base'
    project: str = ''
    gcloud: str = ''
    setup: str = ''
    python: str = 'python3'
    strategy: str = _LOCAL


def read_options(texts: Sequence[str]) -> QueuedResourcesOptions:
    """Returns the options of 'name=value' texts; see `places.read_options`."""
    return places.read_options(QueuedResourcesOptions, texts)


def render(topology: Topology, run_dir: RunDir, package: str, options: QueuedResourcesOptions) -> str:
    """Returns what `submit` runs, and the startup script of the VM."""
    _on_vm(topology, options)
    return f'# {shlex.join(_command(run_dir, options))}\n{_startup(topology, run_dir, package, options)}'


def submit(topology: Topology, run_dir: RunDir, package: str, options: QueuedResourcesOptions) -> str:
    """Asks for the TPU VM. Returns how to watch and to stop it; one sentence each line.

    Raises:
      ValueError: if the run cannot be on one VM, or no zone is given.
      RuntimeError: if Google Cloud refuses, as it does while there is a queued resource of that
        name.
    """
    on_vm = _on_vm(topology, options)
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


def _on_vm(topology: Topology, options: QueuedResourcesOptions) -> Topology:
    """Returns the topology with the commands of the VM."""
    if not options.zone:
        raise UserValueError(
            'got no zone for --backend=queued_resources; need --backend_option=zone=us-central2-b, say'
        )
    size = re.fullmatch(r'v\d+[a-z]*-(\d+)', options.accelerator_type)
    if not size:
        raise UserValueError(
            f"got accelerator_type={options.accelerator_type}; need a TPU's kind and size, such as v4-8 or "
            'v5litepod-8; see gcloud compute tpus accelerator-types list'
        )
    if int(size[1]) > _ONE_HOST and options.strategy == _LOCAL:
        raise UserValueError(
            f'got accelerator_type={options.accelerator_type}, of several hosts, with strategy={_LOCAL}, which has the '
            f'chips of one host; need a size of at most {_ONE_HOST}, or strategy=tpu, with TPU_NAME set in setup'
        )
    commands = places.on_tpu(topology, options.strategy).with_commands(lambda job: (options.python, *job.command[1:]))
    return dataclasses.replace(commands, warm_parent=None)


def _startup(topology: Topology, run_dir: RunDir, package: str, options: QueuedResourcesOptions) -> str:
    return _STARTUP.format(
        setup=f'{options.setup}\n' if options.setup else '',
        jobs=' '.join(job.name for job in topology.jobs),
        supervise=shlex.join([options.python, '-m', f'{package}.supervise', f'--root_dir={run_dir.root}']),
        logs=shlex.quote(str(run_dir.logs)),
    )


def _command(run_dir: RunDir, options: QueuedResourcesOptions) -> list[str]:
    name = places.run_name(run_dir)
    return [
        *('gcloud', 'compute', 'tpus', 'queued-resources', 'create', name, f'--node-id={name}', *_where(options)),
        f'--accelerator-type={options.accelerator_type}',
        f'--runtime-version={options.runtime_version}',
        *shlex.split(options.gcloud),
        f'--metadata-from-file=startup-script={run_dir.root / _STARTUP_FILE}',
    ]


def _where(options: QueuedResourcesOptions) -> list[str]:
    return [f'--zone={options.zone}', *([f'--project={options.project}'] if options.project else [])]
