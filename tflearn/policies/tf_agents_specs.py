"""The file with the specs of an exported policy for TF-Agents' loader, as `PolicySaver` writes it."""

import pathlib
import tempfile
from typing import Any

from tf_agents.policies import policy_saver
from tf_agents.specs import tensor_spec

from tflearn.policies import plain_nests

FILE = pathlib.Path(policy_saver.POLICY_SPECS_PBTXT)


def content(policy: Any) -> bytes:
    """Returns the file's content for a TF-Agents policy."""
    specs = {
        'collect_data_spec': policy.collect_data_spec,
        # As `get_initial_state` of the export returns it.
        'policy_state_spec': plain_nests.to_plain(policy.policy_state_spec),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, FILE)
        tensor_spec.to_pbtxt_file(str(path), specs)
        return path.read_bytes()
