"""What the tests of policy servers share."""

import pytest


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    """A directory with version 7 of a policy."""
    from tests.testing import served_policies

    root = tmp_path_factory.mktemp('policies')
    served_policies.Publisher(root).publish(7)
    return root
