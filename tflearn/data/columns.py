"""The columns of a data set: what an episode file holds for each step,
and the file that describes them.
"""

import contextlib
import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import struct_pb2
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core import forms
from tflearn.core.errors import UserOSError, UserTypeError, UserValueError
from tflearn.core.settings import Finite, NonNegativeInt, Range
from tflearn.core.types import EnvironmentSpecs, named_leaves
from tflearn.files import messages
from tflearn.files.run_dir import read_json, write_json

FORMATS = (1, 2)  # of the first each record is one episode; the second is written
DESCRIPTION, SPECS = 'dataset.json', 'environment_specs.pbtxt'
WEIGHT = 'weight'  # in the policy info of logs: how many decisions one stands for
# What a policy records of an action, for off-policy evaluation.
LOG_PROBABILITY = policy_step.PolicyInfo(log_probability=tf.TensorSpec((), tf.float32, 'log_probability'))


@dataclasses.dataclass(frozen=True)
class Column:
    """One tensor of a step.

    Attributes:
      name: its path in a Trajectory, such as 'observation.arm'.
      dtype: numpy's name of its dtype; the files hold little-endian numbers.
      shape: its shape in one step.
    """

    name: str
    dtype: str
    shape: tuple[Annotated[int, Range(least=0, most=1 << 31)], ...]

    def __str__(self) -> str:
        return f'{self.name}: {self.dtype}[{", ".join(map(str, self.shape))}]'

    @functools.cached_property
    def given(self) -> np.dtype:
        """The dtype of the numbers in memory."""
        return np.dtype(self.dtype)

    @functools.cached_property
    def stored(self) -> np.dtype:
        """The dtype of the numbers in a file."""
        return self.given.newbyteorder('<')

    @functools.cached_property
    def num_bytes(self) -> int:
        """The bytes of one step."""
        return math.prod(self.shape) * self.given.itemsize

    def encode(self, values: np.ndarray) -> memoryview:
        """Returns the bytes of values [T, *shape], if possible without a copy;
        raises ValueError for others.
        """
        if values.shape[1:] != self.shape or values.dtype != self.given:
            raise UserValueError(f'got {self.name} with shape {values.shape[1:]}, {values.dtype}; need {self}')
        stored = values.astype(self.stored, order='C', copy=False)
        return stored.reshape(-1).view(np.uint8).data

    def decode(self, data: bytes, num_steps: int) -> np.ndarray:
        """Returns values [T, *shape]; raises ValueError if the bytes are not as many."""
        return np.frombuffer(data, self.stored).reshape(num_steps, *self.shape).astype(self.given, copy=False)


def columns_of(spec: types.NestedTensorSpec) -> tuple[Column, ...]:
    """Returns the columns of a Trajectory's spec, in the order in which tf.nest flattens it.

    Args:
      spec: the spec of one step, without outer dimensions.

    Raises:
      TypeError: for text.
      ValueError: for an unknown dimension.
    """
    columns = []
    for name, leaf in named_leaves(spec).items():
        if leaf.dtype in (tf.string, tf.variant, tf.resource):
            raise UserTypeError(f'got column {name} of {leaf.dtype.name}; need numbers or booleans')
        if not leaf.shape.is_fully_defined():
            raise UserValueError(f'got column {name} with shape {leaf.shape}; need fixed dimensions')
        columns.append(Column(name, leaf.dtype.name, tuple(leaf.shape)))
    return tuple(columns)


def data_spec(specs: EnvironmentSpecs, policy_info: types.NestedTensorSpec = ()) -> trajectory.Trajectory:
    """Returns the spec of a Trajectory: a step in an environment,
    with what the policy records of it.
    """
    time_step = specs.time_step
    return trajectory.Trajectory(
        step_type=time_step.step_type,
        observation=specs.observation,
        action=specs.action,
        policy_info=policy_info,
        next_step_type=time_step.step_type,
        reward=time_step.reward,
        discount=time_step.discount,
    )


def boundaries(num_rows: int, terminated: bool) -> dict[str, np.ndarray]:
    """Returns the columns [num_rows] of an episode with its boundary row that follow from how long it is, by name."""
    step_type, discount = np.full(num_rows, ts.StepType.MID, np.int32), np.ones(num_rows, np.float32)
    step_type[0], step_type[-1] = ts.StepType.FIRST, ts.StepType.LAST
    if terminated and num_rows > 1:
        discount[-2] = 0.0
    next_step_type = np.append(step_type[1:], np.int32(ts.StepType.FIRST))
    return {'step_type': step_type, 'next_step_type': next_step_type, 'discount': discount}


@contextlib.contextmanager
def making(directory: pathlib.Path) -> Iterator[None]:
    """Around what makes a directory: an OSError becomes one for the user."""
    try:
        yield
    except OSError as error:
        raise UserOSError(
            f'got the directory {directory}, which cannot be made ({error.strerror}); need another path'
        ) from error


def describe(
    directory: pathlib.Path, specs: EnvironmentSpecs, columns: Sequence[Column], metadata: Mapping[str, Any]
) -> None:
    """Writes the description of a data set that has none yet; checks one that is there.

    Args:
      directory: the data set's directory; it is created.
      specs: the environment's specs.
      columns: the columns of its episodes.
      metadata: what is known of the data, such as the environment and the policy. JSON.

    Raises:
      ValueError: if the data set has other columns.
      OSError: if its directory cannot be made.
    """
    with making(directory):
        directory.mkdir(parents=True, exist_ok=True)
    if (directory / DESCRIPTION).exists():
        found = read_columns(directory)
        if found != tuple(columns):
            raise UserValueError(
                f'got episodes with {difference(columns, found)} for the data set {directory}, whose description has '
                'others; need the same; write to another directory'
            )
        return
    described = [dataclasses.asdict(column) for column in columns]
    parts = {field.name: getattr(specs, field.name) for field in dataclasses.fields(specs)}
    tensor_spec.to_pbtxt_file(str(directory / SPECS), parts)
    # Last of all: with this file the directory is a data set.
    write_json(directory / DESCRIPTION, {'format': FORMATS[-1], 'columns': described, 'metadata': dict(metadata)})


def read_columns(directory: pathlib.Path) -> tuple[Column, ...]:
    """Returns a data set's columns.

    Raises:
      ValueError: if the directory is no data set, or of a newer format.
    """
    return _columns(_read(directory))


def read_metadata(directory: pathlib.Path) -> dict[str, Any]:
    """Returns what `describe` was given; raises ValueError like `read_columns`."""
    return dict(_read(directory)['metadata'])


def write_metadata(directory: pathlib.Path, metadata: Mapping[str, Any]) -> None:
    """Replaces what `describe` was given; raises ValueError like `read_columns`."""
    write_json(directory / DESCRIPTION, {**_read(directory), 'metadata': dict(metadata)})


def read_specs(directory: pathlib.Path) -> EnvironmentSpecs:
    """Returns the specs of the environment that the data are of;
    raises ValueError like `read_columns`.
    """
    _read(directory)
    try:
        return EnvironmentSpecs(**tensor_spec.from_pbtxt_file(str(directory / SPECS)))
    except Exception as error:  # by TensorFlow, protobuf and TF-Agents, for damaged files
        reason = ' '.join(str(error).split())
        raise UserValueError(
            f'got {directory / SPECS}, which cannot be read ({type(error).__name__}: {reason:.300}); need the file of '
            'tflearn data; restore it'
        ) from error


def to_json(specs: EnvironmentSpecs, columns: Sequence[Column]) -> dict[str, Any]:
    """Returns specs and columns as JSON, for the files of other formats."""
    parts = {field.name: getattr(specs, field.name) for field in dataclasses.fields(specs)}
    text = text_format.MessageToString(tensor_spec.to_proto(parts))
    return {'columns': [dataclasses.asdict(column) for column in columns], 'specs': text}


def from_json(described: Mapping[str, Any]) -> tuple[EnvironmentSpecs, tuple[Column, ...]]:
    """The inverse of `to_json`."""
    specs = tensor_spec.from_proto(text_format.Parse(described['specs'], struct_pb2.StructuredValue()))
    return EnvironmentSpecs(**specs), _columns(described)


def have_weights(directories: Sequence[pathlib.Path]) -> bool:
    """Returns whether data sets have the column of `WEIGHT`;
    raises ValueError if only some have.
    """
    name = f'policy_info.{WEIGHT}'
    having = [each for each in directories if name in {column.name for column in read_columns(each)}]
    if having and (without := set(directories) - set(having)):
        raise UserValueError(f'got {min(without)} without {name}, and {having[0]} with it; need it in all, or in none')
    return bool(having)


def difference(got: Sequence[Column], need: Sequence[Column]) -> str:
    """Returns the columns of `got` that are not in `need`;
    of `need` those that `got` lacks, if there are none.
    """
    other = [str(column) for column in got if column not in need]
    return ', '.join(other) or f'no {", ".join(str(column) for column in need if column not in got)}'


class _Columns(TypedDict):
    columns: list[Column]


_Split = TypedDict('_Split', {'part': str, 'by': str, 'share': Finite, 'from': list[messages.Data]})


class _Returns(TypedDict):
    mean: float


class _Recording(TypedDict):
    episodes: NonNegativeInt
    returns: _Returns


class _Facts(TypedDict):
    """What later programs read of a data set's metadata, see `data.metadata`."""

    split: NotRequired[_Split]
    recordings: NotRequired[list[_Recording]]
    copied_from: NotRequired[list[messages.Data]]
    stated: NotRequired[dict[str, float | bool]]
    missing: NotRequired[dict[str, float]]
    weighed: NotRequired[bool]


class _Description(_Columns):
    """`DESCRIPTION`."""

    metadata: _Facts


def _columns(described: Mapping[str, Any]) -> tuple[Column, ...]:
    if fault := forms.fault(described, _Columns):
        raise UserValueError(f'{fault}; restore {DESCRIPTION}')
    columns = tuple(Column(each['name'], each['dtype'], tuple(each['shape'])) for each in described['columns'])
    for column in columns:
        try:
            known = np.dtype(column.dtype).name == column.dtype
        except TypeError:
            known = False
        if not known:
            raise UserValueError(
                f'got the column {column.name} of {column.dtype:.80} in {DESCRIPTION}; need a dtype of numpy such as '
                'float32, without a byte order: files hold little-endian numbers'
            )
    return columns


def _read(directory: pathlib.Path) -> dict[str, Any]:
    described = read_json(directory / DESCRIPTION)
    if described is None:
        raise UserValueError(f'got {directory} without {DESCRIPTION}; need a directory that tflearn data has written')
    if described.get('format') not in FORMATS:
        raise UserValueError(
            f'got {directory / DESCRIPTION} of format {described.get("format")!r:.80}; need one of {FORMATS}, which '
            'this version knows'
        )
    if fault := forms.fault(described, _Description, '', f'{directory / DESCRIPTION} with '):
        raise UserValueError(f'{fault}; restore the file')
    return described


def _episode_return(rewards: np.ndarray) -> np.ndarray:
    """Returns the sum of all rewards [T], for each step."""
    return np.full(len(rewards), rewards.sum())


def _return_to_go(rewards: np.ndarray) -> np.ndarray:
    """Returns the sum of the rewards [T] from each step on."""
    return np.cumsum(rewards[::-1])[::-1]


_FUNCTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    'policy_info.episode_return': _episode_return,
    'policy_info.return_to_go': _return_to_go,
}
# As agents ask for them (`bc.EPISODE_WEIGHTS`).
DERIVED = tuple(Column(name, 'float32', ()) for name in _FUNCTIONS)


def derive(column: Column, episode: Mapping[Column, np.ndarray]) -> np.ndarray:
    """Returns the values [T] of one of `DERIVED`.

    Args:
      column: which one.
      episode: the values [T, ...] of the columns that a file holds; if it has several rewards, they
        are added.
    """
    named = {stored.name: values for stored, values in episode.items()}
    step_type = named['step_type']
    rewards = [values for name, values in named.items() if name.partition('.')[0] == 'reward']
    total = sum(reward.astype(np.float64).reshape(len(step_type), -1).sum(axis=1) for reward in rewards)
    # After the last action there is no reward.
    return _FUNCTIONS[column.name](np.where(step_type == ts.StepType.LAST, 0.0, total)).astype(column.dtype)
