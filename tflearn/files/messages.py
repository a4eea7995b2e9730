"""The forms of the small files by which the programs of a run speak with each other,
see `core.forms`.

Programs of other versions, and people, write some of them too: a field that no reader needs is no
fault.
"""

from typing import Annotated, Any, NotRequired, TypedDict

from tflearn.core.settings import Finite, NonNegativeFloat, NonNegativeInt, PositiveInt, Range

Moment = Annotated[float, Range(least=0, most=1 << 37)]  # [s since 1970], as calendars know it
_Number = Finite | None


class _Scores(TypedDict):
    """What was found by an evaluation. Returns may be infinite."""

    mean_return: float
    env_steps: NotRequired[NonNegativeInt | None]
    num_episodes: NotRequired[NonNegativeInt]
    returns: NotRequired[list[float]]
    mean_return_interval: NotRequired[tuple[float, float] | None]
    mean_length: NotRequired[float | None]
    metrics: NotRequired[dict[str, float | None] | None]
    exported_at: NotRequired[Moment | None]
    incomplete: NotRequired[str | None]


class Evaluation(_Scores):
    """An evaluation in DONE or metadata."""

    train_step: NotRequired[NonNegativeInt]


class StepEvaluation(_Scores):
    """A line of `RunDir.evaluations`."""

    train_step: NonNegativeInt


STOPPED = 'learner.stop:'  # begins the reason of a run that its program has stopped


class Ended(TypedDict):
    """What `RunDir.done` and `RunDir.train_result` have in common."""

    reason: str
    conditions: NotRequired[dict[str, float]]
    train_step: NotRequired[NonNegativeInt]
    env_steps: NotRequired[NonNegativeInt | None]
    seconds: NotRequired[NonNegativeFloat | None]


class TrainResult(TypedDict):
    """`RunDir.train_result` of a run with an environment."""

    reason: str
    train_step: NonNegativeInt
    env_steps: NonNegativeInt | None
    seconds: NonNegativeFloat | None


class Done(TypedDict):
    """`RunDir.done`."""

    reason: str
    train_step: NonNegativeInt
    env_steps: NotRequired[NonNegativeInt | None]
    seconds: NotRequired[NonNegativeFloat | None]
    policy: NotRequired[str | None]
    evaluation: NotRequired[Evaluation | None]


class StopRequest(TypedDict):
    """`RunDir.stop_request`."""

    reason: NotRequired[str]
    evaluation: NotRequired[StepEvaluation]


class Status(TypedDict):
    """`RunDir.status`: what is read of it by name."""

    pid: NotRequired[PositiveInt]
    started: NotRequired[str]
    state: NotRequired[str]
    time: NotRequired[Moment]
    restarts: NotRequired[dict[str, Any]]
    train_step: NotRequired[NonNegativeInt | None]
    env_steps: NotRequired[NonNegativeInt | None]
    mean_return: NotRequired[_Number]
    secs_left: NotRequired[NonNegativeFloat | None]
    environment_secs: NotRequired[_Number]
    policy_secs: NotRequired[_Number]
    writing_secs: NotRequired[_Number]


class Failure(TypedDict):
    """`RunDir.failure`."""

    message: str


class Address(TypedDict):
    """`RunDir.address`: of the coordinator, a feed, a worker, or a group of workers."""

    address: NotRequired[str]
    attempt: NotRequired[str]
    count: NotRequired[NonNegativeInt]
    attempts: NotRequired[list[str]]
    addresses: NotRequired[list[str]]


class Owner(TypedDict):
    """A file of `RunDir.owners`."""

    pid: NotRequired[PositiveInt]
    started: NotRequired[str]
    machine: NotRequired[str]
    host: NotRequired[str]
    since: NotRequired[Moment]
    released: NotRequired[bool]


class Metadata(TypedDict):
    """`metadata.json` of an exported version. A policy of another program may have none of it."""

    train_step: NotRequired[NonNegativeInt]
    env_steps: NotRequired[NonNegativeInt | None]
    exported_at: NotRequired[Moment | None]
    evaluation: NotRequired[Evaluation | None]
    specs: NotRequired[dict[str, Any] | None]
    observation_names: NotRequired[list[str]]
    action_mask: NotRequired[str | None]
    vocabularies: NotRequired[dict[str, list[str]] | None]
    missing: NotRequired[dict[str, float] | None]
    trained_on: NotRequired['list[Data] | None']
    gate: NotRequired[dict[str, Any] | None]
    graph: NotRequired[str]


Data = TypedDict('Data', {'path': str, 'digest': str, 'split': dict[str, Any], 'from': list['Data']})  # type: ignore[misc]
Data.__doc__ = 'A data set that a policy has learned from, and those that it was made of.'
