"""What only one lane of versions has; see docs/support-horizon.md."""

import sys

import pytest

IS_CURRENT = sys.version_info >= (3, 12)
# Two lines of TF-Agents 0.19, which our packaged agents do not pass through.
numpy_1 = pytest.mark.skipif(IS_CURRENT, reason="TF-Agents' own class fails with NumPy 2")
