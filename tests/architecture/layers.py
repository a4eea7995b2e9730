"""Which package may import which: docs/architecture.md as code. A rule takes the files and returns the violations."""

import ast
import re
import sys
from collections.abc import Sequence

from tests.architecture.source_tree import SourceFile, dotted_name, is_within

VOCABULARY = (
    'errors',
    'train_step',
    'waiting',
    'background',
    'stderr',
    'histograms',
    'finite',
    'record_files',
    'lease',
    'run_dir',
    'extras',
    'experience',
    'types',
    'wrapped_agent',
    'joined_leaves',
    'action_mask',
    'control',
)
# Package -> the packages that it may import. An annex is a part of a large subject and knows the package it belongs to;
# jobs/ knows all of them but config/, launch/, schedulers/ and tools/.
PACKAGES = {
    'security': (),
    'environments': (),
    'external': ('rpc', 'security'),
    'transforms': (),
    'networks': (),
    'optimization': (),
    'agents': ('networks', 'optimization'),
    'actors': (),
    'rpc': ('security',),
    'replay': ('rpc',),
    'sampling': ('replay',),
    'feed': ('replay', 'sampling', 'rpc'),
    'weights': ('replay', 'rpc', 'security'),
    'data': ('rpc',),
    'ope': (),
    'tools': (),
    'remote': (),
    'policies': ('security',),
    'serving': ('policies', 'rpc', 'security'),
    'checkpoints': ('security',),
    'distribute': (),
    'learner': ('checkpoints', 'distribute'),
    'tf_agents_compat': ('learner', 'checkpoints', 'distribute'),
}
# File -> what it may import besides, and why the rule does not fit.
EXCEPTIONS = {
    'scripts/job_flags.py': ('tflearn.core.tokens',),  # before a job is started, without TensorFlow
    'scripts/weights.py': ('tflearn.weights',),  # no job, and without TensorFlow
    'scripts/tunnel.py': ('tflearn.net.tunnel', 'tflearn.security'),  # no job, and without TensorFlow
}
JOBS = (
    'replay_server',
    'collect',
    'train',
    'synchronous',
    'train_offline',
    'record',
    'evaluate',
    'policy_evaluation',
    'serve',
    'export',
    'feed',
)
VOCABULARY_LIBRARIES = (
    *('absl.logging', 'numpy', 'tensorflow', 'tf_agents.specs', 'tf_agents.trajectories', 'tf_agents.typing'),
    *sys.stdlib_module_names,
)
USERS_KINDS = ('ValueError', 'TypeError', 'TimeoutError', 'ImportError', 'OSError', 'FileNotFoundError')
# launch/ and its annex start jobs: they are to be there at once.
LIGHT = ('launch', 'schedulers')
LIGHT_NEVER = ('tensorflow', 'tf_agents', 'numpy', 'gin', 'reverb')

# What may be used where. A name stands for all that is in it; what nobody may use has no place.
DOORS = {
    'reverb': ('tflearn/replay/', 'tflearn/sampling/', 'tflearn/weights/'),
    'gymnasium': ('tflearn/environments/',),
    'envpool': ('tflearn/environments/',),
    'dm_env': ('tflearn/environments/',),
    'dm_control': ('tflearn/environments/',),
    'ale_py': ('tflearn/environments/',),
    'absl.flags': ('scripts/',),
    'absl.app': ('scripts/',),
    'gin': ('tflearn/config/',),
    'grpc': ('tflearn/rpc/', 'tflearn/serving/'),
    'grpc_health': ('tflearn/rpc/', 'tflearn/serving/'),
    'prometheus_client': ('tflearn/rpc/', 'tflearn/serving/'),
    'tensorflow_serving': ('tflearn/serving/',),
    'fsspec': ('tflearn/remote/',),
    'subprocess': ('tflearn/launch/', 'tflearn/launch/ray_driver.py'),  # a program that imports nothing of ours
    'ray': ('tflearn/launch/ray_driver.py',),
    'yaml': ('tflearn/launch/',),
    'kubernetes': ('tflearn/launch/',),
    'tf_agents.agents': ('tflearn/agents/', 'tflearn/networks/'),
    'tensorflow.function': (
        *('tflearn/learner/', 'tflearn/checkpoints/', 'tflearn/distribute/', 'tflearn/tf_agents_compat/'),
        *('tflearn/policies/', 'tflearn/serving/', 'tflearn/actors/', 'tflearn/feed/'),
    ),
    'tensorflow.tpu': ('tflearn/core/strategies.py',),
    'tensorflow.distribute.cluster_resolver': ('tflearn/core/strategies.py',),
    'tensorflow.config.experimental_connect_to_cluster': ('tflearn/core/strategies.py',),
    'tensorflow.config.experimental_connect_to_host': ('tflearn/core/strategies.py',),
    'tensorflow.python': ('tflearn/learner/datasets.py',),  # works around a wait that has no public option
    'time.sleep': (),
    # Threads that nobody notices when they die.
    'threading.Thread': ('tflearn/core/background.py',),
    'threading.Timer': (),
}

# Names in the run directory that another library uses as well: where, and which.
# What describes the layout of a run by patterns, for stores that know no directories.
PATTERNS = ('tflearn/files/store_layout.py', 'tflearn/files/store_roles.py')
OTHERS_PATHS = {('tflearn/replay/server.py', 'DONE')}  # Reverb marks a complete checkpoint so.


def layers(files: Sequence[SourceFile]) -> list[str]:
    """Checks that every file of tflearn/ and scripts/ imports only what its layer may."""
    job_parts = ['.'.join(file.parts) for file in files if file.path.startswith('tflearn/jobs/')]
    job_parts = [name for name in job_parts if name.rpartition('.')[2] not in JOBS]
    problems = set()
    for file in files:
        if file.parts[0] not in ('tflearn', 'scripts'):
            continue
        may_import = _may_import(file, job_parts)
        for name, line in file.references:
            if is_within(name, ('tflearn', 'scripts', 'tests', 'benchmarks')) and not is_within(name, may_import):
                if name in ('tflearn', 'tflearn.__version__'):
                    continue
                allowed = ', '.join(may_import) or 'nothing of the project'
                problems.add(
                    f'{file.at(line)}: got {name}; need one of: {allowed}; hand it over as an argument in '
                    'tflearn/jobs/, or move it to the package that uses it'
                )
    return sorted(problems)


def _may_import(file: SourceFile, job_parts: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the project that `file` may use; `job_parts` are the modules in jobs/ that are no jobs."""
    vocabulary = tuple(f'tflearn.{name}' for name in VOCABULARY)
    if file.parts[0] == 'scripts':
        packages = (f'tflearn.{name}' for name in ('api', 'jobs', *LIGHT, 'config', 'tools', 'remote'))
        return ('scripts', *packages, *vocabulary, *EXCEPTIONS.get(file.path, ()))
    package = file.parts[1]
    if package == '__init__':
        return ('tflearn',)
    if package in VOCABULARY:
        return vocabulary[: VOCABULARY.index(package)]
    if package == 'config':
        return (*vocabulary, 'tflearn.config')
    if package in ('launch', 'schedulers'):
        own = ('tflearn.launch', 'tflearn.schedulers') if package == 'schedulers' else ('tflearn.launch',)
        return ('tflearn.core.errors', 'tflearn.files.run_dir', *own)
    if package == 'jobs':
        return (*vocabulary, *(f'tflearn.{name}' for name in PACKAGES), *job_parts)
    if package == 'api':
        return (*vocabulary, *(f'tflearn.{name}' for name in (*PACKAGES, 'api', 'config', 'jobs', *LIGHT)))
    if package not in PACKAGES:
        return ()
    own = (package, *PACKAGES[package])
    return (*vocabulary, *(f'tflearn.{name}' for name in own), *EXCEPTIONS.get(file.path, ()))


def libraries(files: Sequence[SourceFile]) -> list[str]:
    """Checks the outside libraries of the layers that are to stay light: the vocabulary, launch/ and its annex."""
    problems = []
    for file in files:
        if file.parts[0] != 'tflearn':
            continue
        for name, line in file.imports:
            if file.parts[1] in VOCABULARY and not is_within(name, ('tflearn', *VOCABULARY_LIBRARIES)):
                problems.append(
                    f'{file.at(line)}: got an import of {name} in the vocabulary; need Python, numpy, TensorFlow or '
                    'tf_agents.{specs,trajectories,typing}; move what needs it to a package'
                )
            if file.parts[1] in LIGHT and is_within(name, LIGHT_NEVER):
                problems.append(
                    f'{file.at(line)}: got an import of {name} in {file.parts[1]}/, which starts jobs and is none'
                )
    return problems


def doors(files: Sequence[SourceFile]) -> list[str]:
    """Checks that an outside library is used only in the packages that are its door."""
    problems = set()
    for file in files:
        if file.parts[0] not in ('tflearn', 'scripts'):
            continue
        for name, line in file.references:
            for door, places in DOORS.items():
                if is_within(name, [door]) and not file.path.startswith(places):
                    where = f'only {", ".join(places)} may use it' if places else 'nobody may use it'
                    problems.add(f'{file.at(line)}: got {door}; {where}; ask that package, or take a callable')
    return sorted(problems)


def gin_folder(files: Sequence[SourceFile]) -> list[str]:
    """Checks that gin/ holds no Python, which would shadow the gin library for programs that run in the checkout."""
    return [
        f'{file.path}: got Python under gin/; need gin files only; move it' for file in files if file.parts[0] == 'gin'
    ]


def run_dir_paths(files: Sequence[SourceFile]) -> list[str]:
    """Checks that no file of tflearn/ but run_dir.py spells a path of the run directory.

    The names are those that run_dir.py joins with `/`. One with a dot in it is a path wherever it stands; the others
    are ordinary words, so they count only where they are joined to a path.
    """
    names = {
        name
        for file in files
        if file.path == 'tflearn/files/run_dir.py'
        for name, _ in _joined(file)
        if not name.isspace()
    }
    problems = []
    for file in files:
        if file.parts[0] not in ('tflearn', 'scripts') or file.path in ('tflearn/files/run_dir.py', *PATTERNS):
            continue
        with_dot = [
            (node.value, node.lineno)
            for node in ast.walk(file.syntax)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r'\S*\.\S*', node.value)
        ]
        for text, line in sorted({*_joined(file), *with_dot}, key=lambda found: found[1]):
            if names.intersection(text.split('/')) and (file.path, text) not in OTHERS_PATHS:
                problems.append(
                    f'{file.at(line)}: got the path {text!r} of the run directory; need a property of RunDir; add one '
                    'in tflearn/files/run_dir.py'
                )
    return problems


def user_errors(files: Sequence[SourceFile]) -> list[str]:
    """Checks that errors of the kinds that a user causes are made as subclasses of UserError, which programs catch."""
    return [
        f'{file.at(node.lineno)}: got {node.func.id}(...); need User{node.func.id} of tflearn.core.errors'
        for file in files
        if file.parts[0] in ('tflearn', 'scripts')
        for node in ast.walk(file.syntax)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in USERS_KINDS
    ]


def _joined(file: SourceFile) -> list[tuple[str, int]]:
    """Returns the string literals that `file` joins to a path, each with its line."""
    literals: list[ast.expr] = []
    for node in ast.walk(file.syntax):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            literals += [node.left, node.right]
        elif isinstance(node, ast.Call) and dotted_name(node.func).split('.')[-1] in ('join', 'joinpath', 'Path'):
            literals += node.args
    return [
        (node.value, node.lineno) for node in literals if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
