"""What only one lane of versions runs; see docs/support-horizon.md."""

import importlib.metadata
import pathlib
import re
import sys
from collections.abc import Iterable
from typing import Any

import pytest

IS_CURRENT = sys.version_info >= (3, 12)
# TensorFlow for TPUs, whose XLA compiles nothing for a processor.
IS_TPU = any(importlib.metadata.distributions(name='tensorflow-tpu'))
compiles = pytest.mark.skipif(IS_TPU, reason='TensorFlow for TPUs compiles nothing for a processor')
# It gives the output of a broadcast other int8 scales than its input, whose numbers are copied; 2.15 and 2.21 do not.
quantizes = pytest.mark.skipif(IS_TPU, reason='TensorFlow 2.20 converts these policies to int8 wrongly')
# Two lines of TF-Agents 0.19, which our packaged agents do not pass through.
numpy_1 = pytest.mark.skipif(IS_CURRENT, reason="TF-Agents' own class fails with NumPy 2")
# A long test of what others show of the current lane too, or of what the lane does not change.
classic = pytest.mark.classic

# Files and folders of such tests.
CLASSIC_ONLY = (
    # Rules of the source, documents, what is installed.
    *('architecture', 'architecture_test.py', 'docker_test.py', 'docs_code_test.py'),
    *('docs_programs_test.py', 'docs_test.py', 'from_rllib_test.py', 'gin_files_test.py', 'notebook_test.py'),
    *('packaging_test.py', 'release_test.py', 'suite_test.py', 'api/import_name_test.py'),
    # Python alone: protocols, files, processes, command lines.
    *('chaos', 'config', 'files', 'launch', 'net'),
    *('extensions/clusters', 'extensions/stores', 'extensions/experiments/checks_test.py'),
    'extensions/experiments/series_test.py',
    *(f'coordinator/{name}_test.py' for name in ('client', 'control', 'credits', 'reports', 'server')),
    *(f'core/{name}_test.py' for name in ('background', 'tokens', 'waiting', 'watchdog')),
    *(f'environments/{name}_test.py' for name in ('cpp_client', 'external_server', 'pacing')),
    *(f'learner/{name}_test.py' for name in ('checkpoints_process', 'tf_config', 'triggers', 'worker_files')),
    *(f'policies/{name}_test.py' for name in ('exporter_versions', 'versions')),
    *(f'scripts/{name}_test.py' for name in ('command_lines', 'commands', 'completion', 'coordinator')),
    *(f'scripts/{name}_test.py' for name in ('data', 'evaluate')),
    *(f'scripts/{name}_test.py' for name in ('exit_status', 'job_process', 'job_setup', 'launch')),
    *(f'extensions/serving/{name}_test.py' for name in ('clients', 'request_queue', 'server_load', 'server_tls')),
    *('changed_sources_test.py', 'changed_tests_test.py', 'closures_test.py', 'forked_workers_test.py'),
    *('jobs/evaluate_test.py', 'jobs/policy_exports_test.py'),
    # learner/replicas_test.py and xla_loop_test.py show what TensorFlow computes of its options.
    'learner/learner_options_test.py',
    'extensions/product/evaluation_test.py',
    *('jobs/replay_server_test.py', 'jobs/run_metrics_test.py'),
    'extensions/experiments/doctor_test.py',
    # Several workers, of which learner/multi_worker_test.py has two.
    'runs/multi_worker_test.py',
    *('replay/tunnel_test.py', 'replay/without_reverb_test.py'),  # with and without Reverb
)

# A job of its own, `scripts/test --docs`: documents, gin files, what is installed.
DOCUMENTS = (
    *('docker_test.py', 'docs_code_test.py', 'docs_programs_test.py', 'docs_test.py', 'from_rllib_test.py'),
    *('gin_files_test.py', 'notebook_test.py', 'packaging_test.py', 'release_test.py', 'suite_test.py'),
    'environments/page_examples_test.py',
)

_TESTS = pathlib.Path(__file__).parents[1]
# Reverb has no package for the current lane.
_USES_REVERB = re.compile(r'^\s*(import reverb|from (tflearn\.replay\.reverb|tests\.sampling\.prioritized_test))', re.M)
_NO_COMPILER = 'could not find registered transfer manager for platform Host'
_NEEDS_REVERB = re.compile('need --replay_backend=reverb|where reverb cannot be imported')


def sample(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Returns parameters of a test, of which the current lane runs only `chosen`; marks that they have are kept."""
    kinds = [value if isinstance(value, type(pytest.param())) else pytest.param(value) for value in values]
    return [
        each if each.values[0] in chosen else pytest.param(*each.values, marks=[*each.marks, classic], id=each.id)
        for each in kinds
    ]


def leaves_out(path: pathlib.Path) -> str:
    """Returns the words for a file or folder that this lane leaves out, '' for others."""
    name = path.relative_to(_TESTS).as_posix()
    if not IS_CURRENT:
        return ''
    if name.endswith('_test.py') and _USES_REVERB.search(path.read_text(encoding='utf-8')):
        return f'{name} (Reverb)'
    return name if name in CLASSIC_ONLY else ''


def is_other(path: pathlib.Path, documents: str) -> bool:
    """Returns whether `--documents` leaves out a file of tests: 'only' those of documents run, or 'none', or 'all'."""
    if documents == 'all' or not path.name.endswith('_test.py'):
        return False
    return (path.relative_to(_TESTS).as_posix() in DOCUMENTS) != (documents == 'only')


def missing(error: BaseException | None) -> str:
    """Returns what a test met that its lane does not have, '' if that is nothing.

    The current lane has no draws by the server, and no address of one; TensorFlow for TPUs no XLA for processors.
    """
    checks = (AssertionError, pytest.fail.Exception)  # whose texts quote what a test expects
    if isinstance(error, (*checks, type(None))):
        return ''
    if IS_TPU and _NO_COMPILER in str(error):
        return 'XLA for processors'
    return 'Reverb' if IS_CURRENT and _NEEDS_REVERB.search(str(error)) else ''
