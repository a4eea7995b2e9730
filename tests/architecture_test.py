"""The architecture rules hold: layers, doors, sizes, names, BUILD files. Each rule is shown to be able to fail."""

import difflib
import pathlib

import pytest

from tests.architecture import budget, build_files, command_names, layers, source_tree
from tests.testing import changed_tests, lanes

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = source_tree.read(ROOT)
WRITE_BUILD = 'run `python -m tests.architecture.build_files` in the checkout and read what it changed'

# Every rule with files that break it, and what it then reports.
RULES = {
    layers.layers: [
        ({'tflearn/replay/tables.py': 'from tflearn.agents import dqn'}, 'tables.py:1: got tflearn.agents.dqn; need'),
        ({'tflearn/replay/tables.py': 'def f():\n  import tflearn.jobs.train'}, 'tables.py:2: got tflearn.jobs'),
        ({'tflearn/replay/tables.py': 'from .. import agents'}, 'got tflearn.agents'),
        ({'tflearn/core/types.py': 'from tflearn.files import run_dir'}, 'got tflearn.files.run_dir'),
        ({'tflearn/launch/local.py': 'from tflearn.core.waiting import wait_until'}, 'need one of: tflearn.core.error'),
        ({'tflearn/jobs/train.py': 'from tflearn.jobs import collect'}, 'got tflearn.jobs.collect'),
        ({'tflearn/jobs/train.py': 'from tflearn.launch import local'}, 'got tflearn.launch.local'),
        ({'tflearn/replay/tables.py': 'import tflearn\ntflearn.Learner()'}, 'tables.py:2: got tflearn.Learner'),
        ({'tflearn/attic/old.py': 'from tflearn.core import train_step'}, 'nothing of the project'),
        ({'scripts/train.py': 'from tflearn.learner import learner'}, 'got tflearn.learner'),
        ({'tflearn/replay/tables.py': 'from tflearn.sampling import reader'}, 'got tflearn.sampling'),
        ({'tflearn/extensions/serving/server.py': 'from tflearn.replay import server'}, 'got tflearn.replay'),
        ({'tflearn/config/checks.py': 'from tflearn.jobs import train'}, 'got tflearn.jobs.train'),
        ({'tflearn/jobs/train.py': 'from tflearn.config import files'}, 'got tflearn.config.files'),
        ({'tflearn/jobs/train.py': 'from tests import fakes'}, 'got tests.fakes'),
        ({'tflearn/jobs/train.py': 'from tflearn.api import training'}, 'got tflearn.api'),
        ({'tflearn/launch/local.py': 'from tflearn.api import training'}, 'got tflearn.api'),
        ({'tflearn/jobs/train.py': 'from tflearn.extensions.serving import client'}, 'got tflearn.extensions.serving'),
        ({'tflearn/extensions/games/a.py': 'import tflearn.extensions.tasks.nim'}, 'got tflearn.extensions.tasks.nim'),
        ({'tflearn/extensions/stores/a.py': 'from tflearn.launch import local'}, 'got tflearn.launch.local'),
    ],
    layers.rows: [
        ({'tflearn/extensions/attic/old.py': ''}, 'tflearn/extensions.attic: got no row'),
        ({'tflearn/attic/old.py': ''}, 'tflearn/attic: got no row'),
    ],
    layers.loose_files: [({'tflearn/types.py': ''}, 'tflearn/types.py: got a file in no package')],
    layers.libraries: [
        ({'tflearn/core/train_step.py': 'import reverb'}, 'got an import of reverb in core/'),
        ({'tflearn/core/types.py': 'from tf_agents.agents import dqn'}, 'tf_agents.agents.dqn in core/'),
        ({'tflearn/launch/local.py': 'import tensorflow as tf'}, 'got an import of tensorflow in launch/'),
        ({'tflearn/files/run_dir.py': 'import reverb'}, 'got an import of reverb in files/'),
    ],
    layers.doors: [
        ({'tflearn/learner/learner.py': 'import reverb'}, 'learner.py:1: got reverb; only tflearn/replay/reverb/libra'),
        ({'tflearn/replay/reverb/client.py': 'import reverb'}, 'client.py:1: got reverb; only tflearn/replay/rev'),
        ({'tflearn/jobs/train.py': 'from gymnasium import spaces'}, 'only tflearn/environments/, tflearn/ext'),
        ({'scripts/train.py': 'import gin'}, 'only tflearn/config/, tflearn/extensions/tf_agents/gin'),
        ({'tflearn/jobs/train.py': 'from absl import flags'}, 'got absl.flags'),
        ({'scripts/launch.py': 'import subprocess'}, 'only tflearn/launch/, tflearn/replay/valkey/server.py'),
        ({'tflearn/jobs/train.py': 'import tf_agents\nx = tf_agents.agents.dqn'}, 'train.py:2: got tf_agents.agents'),
        (
            {'tflearn/replay/storage.py': 'import tensorflow as tf\n@tf.function\ndef f(): pass'},
            'got tensorflow.function',
        ),
        ({'tflearn/learner/learner.py': 'import tensorflow as tf\ntf.tpu.experimental'}, 'only tflearn/core/strat'),
        (
            {'tflearn/learner/learner.py': 'from tensorflow.python.eager import context'},
            'only tflearn/learner/datasets',
        ),
        ({'tflearn/learner/learner.py': 'import time\ntime.sleep(1)'}, 'got time.sleep; nobody may use it'),
        ({'tflearn/sampling/feed_worker.py': 'from threading import Thread'}, 'got threading.Thread; only tflearn/cor'),
    ],
    layers.mechanisms: [
        (
            {'tflearn/net/http_server.py': 'import select\nselect.epoll()'},
            'http_server.py: got epoll; nobody may use it',
        ),
        ({'tflearn/net/http_server.py': "os.listdir('/proc/self/fd')"}, 'got /proc/self/fd; nobody'),
        ({'tflearn/launch/local.py': 'import ctypes'}, 'got ctypes; only tflearn/core/parent_death.py may use it'),
        ({'tflearn/core/agent_data.py': 'f.__code__.co_names'}, 'got co_names; nobody'),
    ],
    layers.backends: [
        ({f'tflearn/replay/reverb/{name}.py': '' for name in 'abcdef'}, 'tflearn/replay/reverb: got 6 modules'),
        (
            {
                'tflearn/replay/reverb/library.py': '',
                'tflearn/jobs/train.py': 'from tflearn.replay.reverb import library',
            },
            'train.py:1: got tflearn.replay.reverb.library',
        ),
    ],
    layers.gin_folder: [({'gin/algorithms/__init__.py': ''}, 'gin/algorithms/__init__.py: got Python under gin/')],
    layers.run_dir_paths: [
        (
            {
                'tflearn/files/run_dir.py': "class RunDir:\n  p = a / 'train' / 'checkpoints'\n  d = a / 'a.jsonl'",
                'tflearn/jobs/train.py': "job = 'train'\nx = root / 'checkpoints'\ny = open('a.jsonl')",
            },
            "tflearn/jobs/train.py:2: got the path 'checkpoints'",
        ),
        (
            {
                'tflearn/files/run_dir.py': "class RunDir:\n  d = root / 'a.jsonl'",
                'tflearn/jobs/evaluate.py': "\nopen('results/a.jsonl')",
            },
            "tflearn/jobs/evaluate.py:2: got the path 'results/a.jsonl'",
        ),
    ],
    layers.user_errors: [
        ({'tflearn/a.py': "def f():\n  raise ValueError('got 1')"}, 'a.py:2: got ValueError(...); need UserValueError'),
        ({'scripts/a.py': "error = ImportError('got 1')"}, 'a.py:1: got ImportError(...); need UserImportError'),
    ],
    layers.evaluated_text: [
        ({'tflearn/config/names.py': "x = eval('1')"}, 'names.py:1: got eval(...); need no code'),
        ({'scripts/a.py': "def f():\n  exec('x = 1')"}, 'a.py:2: got exec(...); need no code'),
    ],
    budget.file_lines: [({'tests/long_test.py': 'x = 1\n' * 501}, 'got 501 lines')],
    budget.binary_lines: [
        ({'scripts/train.py': 'x = 1\n' * 50 + 'def main() -> None:\n  run()'}, 'got 52 lines of code'),
        ({'scripts/play.py': 'x = 1\n' * 50 + 'def main(program: str) -> None:\n  run()'}, 'got 52 lines of code'),
    ],
    command_names.command_names: [
        ({'tflearn/a.py': 'x = 1\n# see tflearn-reports'}, 'a.py:2: got tflearn-reports; need'),
        ({'scripts/a.py': '"""Reads `tflearn dta record`."""'}, 'got tflearn dta; need'),
        ({'benchmarks/a.py': "'need tflearn-trian'"}, 'got tflearn-trian; need'),
        ({'tools/a.py': "'then tflearn see --root_dir=x'"}, 'got tflearn see; need'),
    ],
    budget.function_lines: [
        ({'tests/a_test.py': 'def f():\n' + '  x = 1\n' * 60}, 'a_test.py:1: got 61 lines in f'),
        ({'tflearn/jobs/f.py': 'def f():\n' + '  x = 1\n' * 120}, 'f.py:1: got 121 lines in f; need at most 120'),
        ({'tflearn/jobs/f.py': 'def g():\n' + '  x = 1\n' * 60}, 'f.py:1: got 61 lines in g; need at most 60'),
    ],
    budget.docstring_verbs: [
        ({'scripts/a.py': 'def f():\n  """Gives a file."""'}, 'a.py:1: got a docstring that begins with Gives'),
    ],
    budget.kinds_of_replay: [
        (
            {'tflearn/a.py': 'x = isinstance(replay, experience.Queue | Uniform)\n' * 9},
            'a.py:9: got 9 isinstance on Iteration, Prioritized, Queue, Reuse, Uniform; need at most 8',
        ),
    ],
    budget.constructor_arguments: [
        (
            {'tflearn/a.py': 'class A:\n  def __init__(self, a, b, c, d, e, *, f, g, h, i): pass'},
            'a.py:2: got 9 arguments',
        ),
    ],
    budget.hints: [
        ({'tflearn/a.py': 'def f(a: int, *b) -> int: pass'}, 'got no type of b of f'),
        ({'scripts/a.py': 'class A:\n  def f(self): pass'}, 'a.py:2: got no type of the result of f'),
    ],
    budget.depth: [({'tflearn/replay/writers/rows.py': ''}, 'got a folder within a package')],
    budget.names: [
        ({'tflearn/replay/io_utils.py': ''}, 'got utils in the name io_utils'),
        ({'tests/helpers/a.py': ''}, 'got helpers in the name helpers'),
        ({'tflearn/a.py': 'class CommonReplay: pass'}, 'got common in the name CommonReplay'),
        ({'tflearn/a.py': 'def misc_things(): pass'}, 'got misc in the name misc_things'),
    ],
}
BAD_TREES = [(rule, tree, message) for rule, cases in RULES.items() for tree, message in cases]


def write(root: pathlib.Path, tree: dict[str, str]) -> None:
    for path, text in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding='utf-8')


@pytest.mark.parametrize('rule', RULES, ids=lambda rule: rule.__name__)
def test_the_checkout_keeps(rule):
    problems = rule(FILES)
    assert not problems, '\n' + '\n'.join(problems)


@pytest.mark.parametrize(('rule', 'tree', 'message'), BAD_TREES, ids=lambda value: getattr(value, '__name__', ''))
def test_a_bad_tree_is_reported(tmp_path, rule, tree, message):
    write(tmp_path, tree)
    problems = rule(source_tree.read(tmp_path))
    assert any(message in problem for problem in problems), problems


def test_a_good_tree_is_not_reported(tmp_path):
    write(
        tmp_path,
        {
            'tflearn/files/run_dir.py': "class RunDir:\n  p = root / 'train'",
            'tflearn/replay/reverb/library.py': 'import reverb\nfrom tflearn.replay import tables',
            'tflearn/replay/tables.py': 'from tflearn.core import a\nfrom tflearn.replay import storage',
            'tflearn/jobs/train.py': "from tflearn.replay import tables\nJOB = 'train'",
            'scripts/train.py': 'from absl import flags\nfrom tflearn.config import files\nfrom tflearn.jobs import x',
            'tflearn/config/files.py': 'import gin\nfrom tflearn.files.run_dir import RunDir',
            'tests/replay/tables_test.py': 'import subprocess\nimport gin\nfrom tflearn.replay import tables',
        },
    )
    assert [rule(source_tree.read(tmp_path)) for rule in RULES] == [[] for _ in RULES]


def test_texts_name_commands_that_are_there():
    files = command_names.texts(ROOT)
    assert {'README.md', 'docs/seeds.md', 'scripts/flags.toml', 'scripts/quickstart'} <= {file.path for file in files}
    problems = command_names.command_names(files)
    assert not problems, '\n' + '\n'.join(problems)


def test_build_files_are_what_the_imports_say():
    difference = []
    for path, text in build_files.expected(ROOT, FILES).items():
        found = (ROOT / path).read_text(encoding='utf-8') if (ROOT / path).exists() else ''
        difference += difflib.unified_diff(
            found.splitlines(), text.splitlines(), f'{path} (got)', f'{path} (need)', lineterm='', n=2
        )
    assert not difference, '\n'.join(['', *difference, WRITE_BUILD])


def test_build_files_follow_the_imports(tmp_path):
    write(
        tmp_path,
        {
            'gin/dqn.gin': 'from __gin__ import dynamic_registration\nfrom tflearn.agents import dqn\n',
            'tflearn/__init__.py': '',
            'tflearn/core/types.py': '',
            'tflearn/agents/__init__.py': '',
            'tflearn/agents/dqn.py': 'from tflearn.core.types import EnvironmentSpecs',
            'tests/agents/dqn_test.py': 'import pytest\nfrom tflearn.agents import dqn\nfrom tests import fakes',
            'tests/fakes.py': 'import numpy',
        },
    )
    texts = build_files.expected(tmp_path, source_tree.read(tmp_path))
    assert list(texts) == ['tflearn/BUILD', 'BUILD']
    assert "deps = ['//tflearn:agents']" in texts['BUILD']
    assert "name = 'agents',\n    srcs = glob(['agents/*.py']),\n" in texts['tflearn/BUILD']
    assert "deps = [':core']" in texts['tflearn/BUILD']


def test_what_the_current_lane_leaves_out_is_there():
    assert [name for name in lanes.CLASSIC_ONLY if not (ROOT / 'tests' / name).exists()] == []


def test_a_change_affects_the_files_of_tests_that_import_it():
    """tests/changed_tests_test.py has other files; this file has parsed those of the checkout."""
    public = changed_tests.public_names()
    assert public['tflearn.train'] == 'tflearn.api.training'
    names = changed_tests.affected(FILES, {'tflearn/networks/critics.py'}, public)
    assert {'tests/networks/critics_test.py', 'tests/agents/sac_test.py'} <= {*names}
    assert 'tests/net/grpc_server_test.py' not in names
