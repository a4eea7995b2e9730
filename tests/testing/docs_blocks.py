"""The blocks of code in the documents."""

import contextlib
import dataclasses
import json
import pathlib
import re
import shlex
from collections.abc import Iterable, Iterator

import pytest

from tests.testing.jobs import SMALL_BINDINGS

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / 'docs'
JOBS = [f'tflearn.jobs.{job}' for job in ('replay_server', 'collect', 'train', 'evaluate')]

# One policy takes less time to trace than three. In Python it is the variable `few`.
GREEDY = 'train.ExportOptions.policies = ("greedy_policy",)'
# Executed before a page's Python. [page: text]
BEFORE = {
    'seeds.md': 'import pathlib',
    'distributed.md': """
import threading
from docs import library_example
make_agent, dataset_fn = lambda: library_example.agent, lambda context: library_example.expert_data(context).repeat()
stop, num_train_steps = threading.Event(), 1_000
""",
    'exporting.md': """
from tflearn.files import run_dir
from tflearn.jobs.export import export
export(run_dir=run_dir.RunDir('runs/dqn_cartpole'), format='onnx', signature='q_values', output='values.onnx')
export(run_dir=run_dir.RunDir('runs/dqn_cartpole'), format='tflite', output='policy.tflite')
""",
    'external-simulators.md': """
import shutil, subprocess
import pytest
cc = shutil.which('cc') or pytest.skip('there is no C compiler')
subprocess.run([cc, '-Wall', '-Wextra', '-Werror', '-o', 'walk', 'walk.c'], check=True, timeout=60)
""",
    'external-simulators.md#A camera, numbers and a memory': """
from tflearn.files import run_dir
from tflearn.jobs.export import export
""",
    'python.md#The Learner as a library': (
        'import tflearn\nfrom docs.library_example import agent, expert_data as dataset_fn'
    ),
}
# Replaced before a page's Python is executed. [page: (text, replacement), ...]
REPLACED = {
    'README.md': [('max_env_steps=100_000', 'max_env_steps=1_100, num_episodes=2, exports=few')],
    'your-algorithm.md': [
        ('num_train_steps=2_000', 'num_train_steps=20, num_episodes=1, exports=few'),
        ('min_size=500', 'min_size=100'),
        ('range(5)', 'range(1)'),
        ('num_train_steps=5_000', 'num_train_steps=20, num_episodes=1, exports=few'),
        ('num_train_steps=20_000', 'num_train_steps=20, num_episodes=1, exports=few'),
    ],
    'from-alf.md': [
        ('num_train_steps=10_000', 'num_train_steps=20, exports=few'),
        ('num_episodes=20', 'num_episodes=1'),
    ],
    'from-circuit-training.md': [
        (
            'num_environments=32,\n    num_train_steps=16_000,\n    export_interval_steps=800,\n    num_episodes=200',
            'num_environments=4,\n    num_train_steps=2,\n    exports=few,\n    num_episodes=2',
        ),
        ('BatchItems(32)', 'BatchItems(4)'),
    ],
    'recommenders.md': [
        ('num_train_steps=4_000', 'num_train_steps=20, exports=few'),
        ('num_episodes=100', 'num_episodes=2'),
    ],
    'from-rllib.md': [
        (
            "mode='processes',\n    num_collectors=2,\n    num_train_steps=4_000",
            'num_train_steps=2, num_episodes=1, exports=few',
        )
    ],
    'from-sb3.md': [
        ('max_env_steps=100_000', 'max_env_steps=1_100, num_episodes=1, exports=few'),
        ('num_episodes=10)', 'num_episodes=1)'),
        ('every_steps=80', 'every_steps=20'),
        ('>= 495.0', '>= 1.0'),
    ],
    # A slow test of tests/api/training_test.py runs it with its five processes.
    'python.md': [
        ('max_env_steps=100_000', 'max_env_steps=1_100, exports=few'),
        ('export_interval_steps=200', 'export_interval_steps=200, num_episodes=2, exports=few'),
        ("'dqn_cartpole')", f"'dqn_cartpole', mode='synchronous', gin_bindings={[*SMALL_BINDINGS, GREEDY]})"),
    ],
    'external-simulators.md': [
        (
            'max_env_steps=5_000,\n    export_interval_steps=500',
            'max_env_steps=1_200, export_interval_steps=500, exports=few, num_episodes=1',
        ),
        # tests/runs/robot_test.py has the processes.
        ('unroll_step_interval_secs=0.1', 'unroll_step_interval_secs=1e-3'),
        ("mode='processes'", 'exports=few'),
        ('min_size=500', 'min_size=20'),
        ('max_env_steps=5_000,\n    export_interval_steps=1_000', 'max_env_steps=60,\n    export_interval_steps=1_000'),
        ('num_episodes=5', 'num_episodes=1'),
    ],
    'external-simulators.md#A camera, numbers and a memory': [
        ('unroll_step_interval_secs=0.05', 'unroll_step_interval_secs=1e-3'),
        ('max_episode_steps=200', 'max_episode_steps=20'),
        ('min_size=100, samples_per_insert=32.0', 'min_size=10, samples_per_insert=8.0'),
        ('BatchItems(32)', 'BatchItems(2)'),
        ('max_env_steps=20_000,\n    num_episodes=5', 'max_env_steps=180,\n    num_episodes=1, exports=few'),
        (
            "    mode='processes',\n)",
            ")\nexport(run_dir=run_dir.RunDir('runs/camera_arm'), format='tflite', output='camera_arm.tflite')",
        ),
        (
            'from ai_edge_litert.interpreter import Interpreter',
            'import tensorflow as tf; Interpreter = tf.lite.Interpreter',
        ),
        ('range(200)', 'range(10)'),
    ],
    'seeds.md': [
        ('range(3)', 'range(2)'),
        ('gin_bindings=[', f'gin_bindings={[*SMALL_BINDINGS, GREEDY]} + ['),
    ],
    # tests/learner/multi_worker_test.py has two workers.
    'distributed.md': [("make('multi_worker')", "make('default')"), ("'/shared/run'", "'shared/run'")],
}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: pathlib.Path
    line: int
    language: str
    text: str

    @property
    def file_name(self) -> str | None:
        """The name of the file that the block is, by its first line."""
        match = re.match(r'(?:#|//) (\w+\.(?:py|gin|toml|c))\n', self.text)
        return match and match[1]

    def __str__(self) -> str:
        return f'{self.page.name}:{self.line}'


def text_of(page: pathlib.Path) -> str:
    """Returns the Markdown of a page, or of a notebook, whose code tests/notebook_test.py executes."""
    text = page.read_text(encoding='utf-8')
    if page.suffix == '.md':
        return text
    return '\n'.join(''.join(cell['source']) for cell in json.loads(text)['cells'] if cell['cell_type'] == 'markdown')


def _blocks(page: pathlib.Path) -> Iterator[Block]:
    text = text_of(page)
    for match in re.finditer(r'^```(.*)\n((?s:.*?))^```$', text, re.MULTILINE):
        yield Block(page, text[: match.start()].count('\n') + 2, match[1], match[2])


PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted([*DOCS.rglob('*.md'), *DOCS.rglob('*.ipynb')])]
BLOCKS = [block for page in PAGES for block in _blocks(page)]


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def of_program(name: str, names: Iterable[str]) -> list[Block]:
    """Returns the blocks of PAGE without those of its parts that are programs in `names`; of PAGE#PART these alone."""
    page, _, part = name.partition('#')
    blocks = [block for block in BLOCKS if block.page.name == page]
    for heading in (other.partition('#')[2] for other in names if other.startswith(f'{page}#')):
        begin = text_of(DOCS / page).partition(f'\n## {heading}\n')[0].count('\n')
        blocks = [block for block in blocks if (block.line > begin) == bool(part)]
    return blocks


def _commands() -> Iterator[tuple[str, list[str]]]:
    """Yields (page and line, words) of each command: of blocks, and of lines of text that begin with a program."""
    for block in of('bash'):
        for i, line in enumerate(block.text.replace('\\\n', '  ').splitlines()):
            words = shlex.split(line, comments=True)
            if words and not re.match(r'[A-Z_]+=\$', line):  # a variable of the lines below
                yield f'{block.page.name}:{block.line + i}', words
            for begin in (
                i for i, word in enumerate(words) if i and re.fullmatch(r'tflearn-(serve|train|launch)', word)
            ):
                yield f'{block.page.name}:{block.line + i} in a container', words[begin:]
    for page in PAGES:
        for i, line in enumerate(text_of(page).splitlines(), 1):
            for command in re.findall(r'`((?:\./scripts/|\.venv/bin/|tflearn[- ])\S+ [^`]*--\w+=[^`]*)`', line):
                yield f'{page.name}:{i}', shlex.split(command)


def _joined(words: list[str]) -> list[str]:
    """Returns the words of a command without variables, and with a verb of `tflearn` in the first one."""
    words = [word for word in words if not re.match(r'[A-Z_]+=', word)]
    is_verb = pathlib.Path(words[0]).name == 'tflearn' and words[1:] and words[1][0] != '-'
    return [f'{words[0]} {words[1]}', *words[2:]] if is_verb else words


COMMANDS = [(place, _joined(words)) for place, words in _commands()]
# Those of our programs: (page and line, the program's module in scripts/, words).
OURS = [
    (
        place,
        re.sub('tflearn[- ]', '', pathlib.Path(words[0]).name).replace('-', '_').replace('quickstart', 'launch'),
        words,
    )
    for place, words in COMMANDS
    if re.fullmatch(r'(\./scripts/quickstart|(\.venv/bin/)?tflearn[- ][\w-]+)', words[0])
]


@contextlib.contextmanager
def working_in(folder: pathlib.Path) -> Iterator[None]:
    """Works in `folder`, whose modules can be imported, until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(ROOT))
        patch.syspath_prepend(str(folder))
        yield
