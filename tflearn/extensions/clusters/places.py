"""What the schedulers share: their options, from texts to a dataclass; their programs;
how a run begins.
"""

import dataclasses
import difflib
import hashlib
import math
import re
import subprocess
from collections.abc import Sequence
from typing import Any, TypeVar

from tflearn.core.errors import UserFileNotFoundError, UserRuntimeError, UserTimeoutError, UserValueError
from tflearn.files.run_dir import RunDir
from tflearn.launch.topology import Topology

Options = TypeVar('Options')


def read_options(kind: type[Options], texts: Sequence[str]) -> Options:
    """Returns the dataclass `kind` with the fields that 'name=value' texts set,
    its own and those of its parts.

    Defaults are strings or integers, or dataclasses of such (the parts).

    Raises:
      ValueError: that names the text that is wrong.
    """
    defaults = _defaults(kind)
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition('=')
        if equals and name not in defaults:
            near = difflib.get_close_matches(name, defaults, n=1)
            advice = f' (did you mean {near[0]}?)' if near else ''
            raise UserValueError(
                f'got --backend_option={text}, an option that this backend does not have{advice}; need one of '
                f'{", ".join(defaults)}'
            )
        if not equals or name in values:
            raise UserValueError(f'got --backend_option={text}; need name=value, each name once: {", ".join(defaults)}')
        number = isinstance(defaults[name], int)
        if number and not value.isdecimal():
            raise UserValueError(f'got --backend_option={text}; need a number, such as {name}={defaults[name]}')
        values[name] = int(value) if number else value
    return _made(kind, values)


def _defaults(kind: type[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        part = dataclasses.is_dataclass(field.default)
        found |= _defaults(type(field.default)) if part else {field.name: field.default}
    return found


def _made(kind: type[Options], values: dict[str, Any]) -> Options:
    parts = {
        field.name: _made(type(field.default), values)
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if dataclasses.is_dataclass(field.default)
    }
    own = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**parts, **{name: value for name, value in values.items() if name in own})


def label(text: str, most: int = 40) -> str:
    """Returns a DNS label, of which the names of Kubernetes and Google Cloud consist."""
    return re.sub(r'[^a-z0-9-]+', '-', text.lower())[:most].strip('-')


def run_name(run_dir: RunDir, *where: str) -> str:
    """Returns a DNS label for a run: the last part of its directory, and a digest.

    Args:
      run_dir: the run's directory; those of the same name in different folders are different runs.
      where: what else tells runs apart, such as the volume that holds the directory.
    """
    digest = hashlib.sha256('\n'.join([str(run_dir.root), *where]).encode()).hexdigest()[:6]
    return f'{label(f"tflearn-{run_dir.root.name}", 33)}-{digest}'


_ANSWER_SECS = 60.0


def output(command: Sequence[str], text: str = '', timeout_secs: float = _ANSWER_SECS) -> str:
    """Returns the standard output of `command`, which reads `text` as its standard input.

    Raises:
      FileNotFoundError: if there is no such program.
      TimeoutError: if it does not end in time.
      RuntimeError: if it fails, with what it wrote to standard error.
    """
    try:
        ended = subprocess.run(
            list(command), input=text, capture_output=True, text=True, timeout=timeout_secs, check=False
        )
    except FileNotFoundError as error:
        raise UserFileNotFoundError(
            f'got no program {command[0]!r}; need a machine from which jobs can be submitted; --render prints what '
            'would be submitted'
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UserTimeoutError(f'got no answer from {command[0]} within {timeout_secs:g} s; need its server') from error
    if ended.returncode:
        words = ' '.join(ended.stderr.split()) or f'exit status {ended.returncode}'
        raise UserRuntimeError(f'got an error from {command[0]}: {words}; see {command[0]} --help')
    return ended.stdout


def on_tpu(topology: Topology, strategy: str, layout: str = '') -> Topology:
    """Returns the topology with a learner that trains on a TPU.

    Args:
      strategy: its `--strategy`.
      layout: the chips of the slice, such as 2x4, which one host has to have.

    Raises:
      ValueError: for several workers; for a slice of several hosts, or one whose chips are not the learner's.
    """
    learner = topology.group('train')[0]
    if learner.workers > 1:
        raise UserValueError('got --num_workers for a TPU, all of whose hosts one process drives; need one')
    chips, has = math.prod(map(int, layout.split('x'))) if layout else 0, learner.resources
    # The chips of one host: of v4 and v5p, whose slices have three dimensions, and of the others.
    most = 4 if layout.count('x') == 2 else 8
    if layout and not (has.accelerator and has.accelerators == chips <= most):
        raise UserValueError(
            f'got tpu_topology={layout}, of {chips} chips, and --resources=train:accelerators={has.accelerators or 0},'
            f'accelerator={has.accelerator}; need a slice of one host, of at most {most} chips, all of them '
            'for the learner, such as tpu_topology=2x4 and accelerators=8,accelerator=tpu-v5-lite-podslice'
        )
    flag = f'--strategy={strategy}'
    return topology.with_commands(lambda job: (*job.command, flag) if job.kind == 'train' else job.command)


def save(topology: Topology, run_dir: RunDir) -> None:
    """Writes the topology to the run directory,
    without what jobs of an earlier submission have left there.
    """
    for path in (run_dir.failure, run_dir.address('coordinator')):
        path.unlink(missing_ok=True)
    topology.save(run_dir)
