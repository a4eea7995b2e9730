"""The settings of `tflearn.train` by name, so that type checkers know them."""

from collections.abc import Collection, Mapping
from typing import Literal, TypedDict

from tflearn.core.settings import PositiveFloat, PositiveInt
from tflearn.data.demonstrations import Cloning, Demonstrations
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.train_settings import Device, Initial, Intervals
from tflearn.learner.learner import LearnerOptions


class RunSettings(TypedDict, total=False):
    """Arguments of `tflearn.jobs.synchronous.synchronous`, and fields of its groups,
    which describe them.

    `num_train_steps` is an argument of `tflearn.train` itself.
    """

    num_environments: PositiveInt
    exports: ExportOptions
    learner_options: LearnerOptions
    collect_options: CollectOptions
    # StopConditions:
    max_env_steps: PositiveInt | None
    max_secs: PositiveFloat | None
    intervals: Intervals
    publish_interval_steps: PositiveInt
    export_interval_steps: PositiveInt
    replica_check_interval_steps: PositiveInt | None
    steps_per_call: PositiveInt
    mean_episodes: PositiveInt
    unit: Literal['train_steps', 'iterations']
    device: Device
    strategy: str
    precision: Literal['float32', 'bfloat16', 'float16']
    inter_op_threads: PositiveInt | None
    intra_op_threads: PositiveInt | None
    dry_run: bool
    cluster_shape: str
    tpu: Literal['v4', 'v5e', 'v5p', 'v6e'] | None
    watch_maintenance: bool | None
    initial: Initial
    seed: int | None
    checkpoint: str | None
    prefixes: Collection[str] | Mapping[str, str]
    optimizers: Collection[str] | Mapping[str, str]
    policy: str | None
    demonstrations: Demonstrations | None
    cloning: Cloning | None
