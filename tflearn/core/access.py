"""Access: where a run's coordinator is, and with what a job reaches it."""

from typing import Literal

from tflearn.core.settings import checked_dataclass


@checked_dataclass(frozen=True)
class Access:
    """How a job reaches the coordinator.

    Attributes:
      address: 'host:port'.
      token: where the token is that it asks for: a file's path, or 'env:NAME'.
      weights_dtype: what the learner sends variables of float32 as: 'float32', or 'bfloat16', which
        takes half of the bytes and keeps three digits. Collectors then act with rounded weights.
    """

    address: str = 'localhost:8009'
    token: str | None = None
    weights_dtype: Literal['float32', 'bfloat16'] = 'float32'
