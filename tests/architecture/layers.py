"""Which package may import which. A rule takes the files and returns the violations."""

import ast
import fnmatch
import re
import sys
from collections.abc import Sequence

from tests.architecture.source_tree import SourceFile, dotted_name, is_within

# Package -> the packages that it may import, in reading order: imports point up this list, and only along its rows.
_LIBRARY = (
    *('core', 'files', 'net', 'environments', 'networks', 'optimization', 'transforms', 'agents', 'replay', 'data'),
    *('coordinator', 'sampling', 'actors', 'learner', 'policies'),
)
PACKAGES: dict[str, tuple[str, ...]] = {
    'core': (),
    'files': ('core',),
    'net': ('core',),
    'environments': ('core', 'files', 'net'),
    'networks': ('core',),
    'optimization': ('core',),
    'transforms': ('core', 'files'),
    'agents': ('core', 'networks', 'optimization'),
    'replay': ('core', 'files'),
    'data': ('core', 'files', 'replay'),
    'coordinator': ('core', 'net'),
    'sampling': ('core', 'replay', 'data'),
    'actors': ('core', 'files'),
    'learner': ('core', 'files', 'replay', 'sampling'),
    'policies': ('core', 'files'),
    'jobs': _LIBRARY,
    'config': ('core', 'files'),
    'launch': ('core.errors', 'core.forms', 'core.parent_death', 'core.settings', 'files', 'net'),
    'api': (*_LIBRARY, 'jobs', 'config', 'launch'),
    'extensions.stores': ('core', 'files'),
    'extensions.tasks': ('core', 'environments'),
    'extensions.games': ('core', 'files', 'environments', 'policies'),
    'extensions.tf_agents': ('core', 'files', 'learner'),
    'extensions.clusters': ('core', 'files', 'launch'),
    'extensions.serving': ('core', 'files', 'net', 'policies', 'jobs'),
    'extensions.experiments': ('core', 'files', 'environments', 'actors', 'config', 'launch', 'api'),
    'extensions.product': (
        *('core', 'files', 'data', 'policies', 'jobs', 'config', 'launch', 'api'),
        'extensions.serving',
    ),
    'scripts': ('extensions', 'api', 'jobs', 'policies', 'launch', 'config', 'files', 'core'),
}
# File -> what it may import besides, and why the rule does not fit.
EXCEPTIONS = {
    'scripts/tools.py': ('tflearn.environments',),  # no job
    'scripts/coordinator.py': ('tflearn.coordinator', 'tflearn.net'),  # no job, and without TensorFlow
}
JOBS = (
    *('replay_server', 'collect', 'train', 'synchronous', 'train_offline', 'record', 'evaluate', 'policy_evaluation'),
    *('export', 'feed'),
)
CORE_LIBRARIES = (
    *('absl.logging', 'numpy', 'tensorflow', 'tf_agents.specs', 'tf_agents.trajectories', 'tf_agents.typing'),
    'tf_agents.utils.nest_utils',
    *sys.stdlib_module_names,
)
USERS_KINDS = ('ValueError', 'TypeError', 'TimeoutError', 'ImportError', 'OSError', 'FileNotFoundError')
# Package -> libraries that it never imports: launch starts jobs, and is to be there at once.
NEVER = {
    'files': ('tensorflow', 'tf_agents', 'reverb'),
    'net': ('tensorflow', 'tf_agents', 'reverb'),
    'launch': ('tensorflow', 'tf_agents', 'numpy', 'gin', 'reverb'),
    'extensions.clusters': ('tensorflow', 'tf_agents', 'numpy', 'gin', 'reverb'),
    'extensions.stores': ('tensorflow', 'tf_agents', 'reverb'),
}

# Words of what depends on a kernel, or on Python's bytecode, and the only file that may have them.
MECHANISMS = {
    'epoll': '',
    '/proc/self/fd': '',
    'co_names': '',
    'co_code': '',
    'ctypes': 'tflearn/core/parent_death.py',
}

# What may be used where. A name stands for all that is in it; what nobody may use has no place.
DOORS = {
    'reverb': ('tflearn/replay/reverb/library.py',),
    'valkey': ('tflearn/replay/valkey/library.py',),
    'zstandard': ('tflearn/files/compression.py',),
    'gymnasium': ('tflearn/environments/', 'tflearn/extensions/games/', 'tflearn/extensions/tasks/'),
    'envpool': ('tflearn/environments/',),
    'jax': ('tflearn/extensions/tasks/', 'tflearn/learner/tpu_compiler.py'),
    'jaxlib': ('tflearn/learner/tpu_compiler.py',),
    'brax': ('tflearn/extensions/tasks/',),
    'gymnax': ('tflearn/extensions/tasks/',),
    'pettingzoo': ('tflearn/extensions/games/',),
    'dm_env': ('tflearn/environments/',),
    'dm_control': ('tflearn/environments/',),
    'ale_py': ('tflearn/environments/',),
    'absl.flags': ('scripts/', 'tflearn/extensions/*/cli.py'),
    'absl.app': ('scripts/',),
    'gin': ('tflearn/config/', 'tflearn/extensions/tf_agents/gin_names.py'),
    'aiohttp': ('tflearn/net/http_server.py', 'tflearn/net/http_connections.py'),
    'grpc': ('tflearn/net/', 'tflearn/extensions/serving/'),
    'grpc_health': ('tflearn/net/', 'tflearn/extensions/serving/'),
    'prometheus_client': ('tflearn/net/', 'tflearn/extensions/serving/'),
    'tensorflow_serving': ('tflearn/extensions/serving/',),
    'fsspec': ('tflearn/extensions/stores/',),
    'pyarrow': ('tflearn/extensions/product/tables.py', 'tflearn/extensions/product/table_values.py'),
    'onnx': ('tflearn/policies/onnx.py',),
    'onnxruntime': ('tflearn/policies/onnx.py',),
    'tf2onnx': ('tflearn/policies/onnx.py',),
    'jinja2': ('tflearn/extensions/experiments/', 'tflearn/extensions/product/'),
    'optuna': ('tflearn/extensions/experiments/',),
    'fcntl': ('tflearn/files/lock.py', 'tflearn/net/server_options.py'),
    'subprocess': (
        *('tflearn/launch/', 'tflearn/replay/valkey/server.py', 'tflearn/extensions/experiments/runs.py'),
        *('tflearn/extensions/clusters/', 'tflearn/learner/tpu_compiler.py'),
    ),
    'ray': ('tflearn/extensions/clusters/ray_driver.py',),
    'yaml': ('tflearn/extensions/clusters/',),
    'kubernetes': ('tflearn/extensions/clusters/',),
    'tf_agents.agents': ('tflearn/agents/', 'tflearn/networks/'),
    'tensorflow.function': (
        *('tflearn/learner/', 'tflearn/core/strategies.py', 'tflearn/core/workers.py'),
        *('tflearn/policies/', 'tflearn/extensions/serving/', 'tflearn/actors/', 'tflearn/sampling/'),
        'tflearn/extensions/tf_agents/',
    ),
    'tensorflow.tpu': ('tflearn/core/strategies.py',),
    'tensorflow.distribute.cluster_resolver': ('tflearn/core/strategies.py',),
    'tensorflow.config.experimental_connect_to_cluster': ('tflearn/core/strategies.py',),
    'tensorflow.config.experimental_connect_to_host': ('tflearn/core/strategies.py',),
    # A wait that has no public option; a replica of TPUs that are not here.
    'tensorflow.python': ('tflearn/learner/datasets.py', 'tflearn/learner/tpu_compiler.py'),
    'tensorflow.compiler': ('tflearn/learner/tpu_compiler.py',),
    'time.sleep': (),
    # Threads that nobody notices when they die.
    'threading.Thread': ('tflearn/core/background.py',),
    'threading.Timer': (),
}

MAX_BACKEND_MODULES = 5

# Names in the run directory that another library uses as well: where, and which.
# What describes the layout of a run by patterns, for stores that know no directories.
PATTERNS = ('tflearn/extensions/stores/store_layout.py',)
OTHERS_PATHS = {('tflearn/replay/checkpoints.py', 'DONE')}  # Reverb marks a complete checkpoint so.


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
                    f'{file.at(line)}: got {name}; need one of: {allowed}; move it to the package that uses it, or '
                    'pass it as an argument'
                )
    return sorted(problems)


def _may_import(file: SourceFile, job_parts: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the project that `file` may use; `job_parts` are the modules in jobs/ that are no jobs."""
    package = package_of(file)
    if package == '__init__':
        return ('tflearn',)
    if package not in PACKAGES:
        return ()
    own = {'scripts': ('scripts',), 'jobs': tuple(job_parts)}.get(package, (f'tflearn.{package}',))
    return (*(f'tflearn.{name}' for name in PACKAGES[package]), *own, *EXCEPTIONS.get(file.path, ()))


def package_of(file: SourceFile) -> str:
    """Returns the package of a file as `PACKAGES` names it."""
    if file.parts[0] != 'tflearn':
        return 'scripts'
    return '.'.join(file.parts[1:3]) if file.parts[1] == 'extensions' and len(file.parts) > 3 else file.parts[1]


def rows(files: Sequence[SourceFile]) -> list[str]:
    """Checks that each row of `PACKAGES` names packages above it only, and that there is a row for each package."""
    above: set[str] = set()
    problems = []
    for package, row in PACKAGES.items():
        below = [name for name in row if not above.intersection((name, name.split('.')[0]))]
        problems += [f'{package}: got {name} in its row; need a package above it' for name in below]
        above.update((package, package.split('.')[0]))
    found = {package_of(file) for file in files if file.parts[0] == 'tflearn' and len(file.parts) > 2} - {'extensions'}
    return problems + [f'tflearn/{name}: got no row in PACKAGES; add it' for name in sorted(found - above)]


def loose_files(files: Sequence[SourceFile]) -> list[str]:
    """Checks that each file of tflearn/ but its `__init__.py` is in a package."""
    return [
        f'{file.path}: got a file in no package; move it to the one whose idea it has'
        for file in files
        if file.parts[0] == 'tflearn' and len(file.parts) == 2 and file.parts[1] != '__init__'
    ]


def libraries(files: Sequence[SourceFile]) -> list[str]:
    """Checks the outside libraries of core/, and of the packages that are to stay light."""
    problems = []
    for file in files:
        if file.parts[0] != 'tflearn' or len(file.parts) < 3:
            continue
        package = package_of(file)
        for name, line in file.imports:
            if package == 'core' and not is_within(name, ('tflearn', *CORE_LIBRARIES)):
                problems.append(
                    f'{file.at(line)}: got an import of {name} in core/; need Python, numpy, TensorFlow or '
                    'tf_agents.{specs,trajectories,typing}; move what needs it to another package'
                )
            if is_within(name, NEVER.get(package, ())):
                problems.append(f'{file.at(line)}: got an import of {name} in {package}/, which has to do without')
    return problems


def doors(files: Sequence[SourceFile]) -> list[str]:
    """Checks that an outside library is used only in the packages that are its door."""
    problems = set()
    for file in files:
        if file.parts[0] not in ('tflearn', 'scripts'):
            continue
        for name, line in file.references:
            for door, places in DOORS.items():
                if is_within(name, [door]) and not any(fnmatch.fnmatch(file.path, f'{each}*') for each in places):
                    where = f'only {", ".join(places)} may use it' if places else 'nobody may use it'
                    problems.add(f'{file.at(line)}: got {door}; {where}; ask that package, or take a callable')
    return sorted(problems)


def backends(files: Sequence[SourceFile]) -> list[str]:
    """Checks that a replay backend has few modules, and that nothing but its own folder imports them.

    `replay/backend.py` loads them where they are used, so that everything else works without them.
    """
    folders = sorted({file.parts[:3] for file in files if file.parts[:2] == ('tflearn', 'replay') and file.parts[3:]})
    problems = []
    for folder in folders:
        own = [file for file in files if file.parts[:3] == folder and file.parts[3] != '__init__']
        if len(own) > MAX_BACKEND_MODULES:
            problems.append(f'{"/".join(folder)}: got {len(own)} modules; need at most {MAX_BACKEND_MODULES}')
        problems += [
            f'{file.at(line)}: got {name}; only its own folder may import it; load it by tflearn.replay.backend'
            for file in files
            if file.parts[0] in ('tflearn', 'scripts') and file.parts[:3] != folder
            for name, line in file.imports
            if is_within(name, ['.'.join(folder)])
        ]
    return problems


def gin_folder(files: Sequence[SourceFile]) -> list[str]:
    """Checks that gin/ holds no Python, which would shadow the gin library for programs that run in the checkout."""
    return [
        f'{file.path}: got Python under gin/; need gin files only; move it' for file in files if file.parts[0] == 'gin'
    ]


def run_dir_paths(files: Sequence[SourceFile]) -> list[str]:
    """Checks that no file of tflearn/ but files/run_dir.py spells a path of the run directory.

    The names are those that files/run_dir.py joins with `/`. One with a dot in it is a path wherever it stands; the
    others are ordinary words, so they count only where they are joined to a path.
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
            for node in file.nodes
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
        for node in file.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in USERS_KINDS
    ]


def evaluated_text(files: Sequence[SourceFile]) -> list[str]:
    """Checks that no text becomes code: what a module has is known by an import of it."""
    return [
        f'{file.at(node.lineno)}: got {node.func.id}(...); need no code that is made of text; import the module'
        for file in files
        if file.parts[0] in ('tflearn', 'scripts')
        for node in file.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ('eval', 'exec')
    ]


def mechanisms(files: Sequence[SourceFile]) -> list[str]:
    """Checks that what depends on a kernel or on Python's bytecode is where `MECHANISMS` has it."""
    return [
        f'{file.path}: got {name}; {f"only {place} may use it" if place else "nobody may use it"}; ask a library for it'
        for file in files
        if file.parts[0] in ('tflearn', 'scripts')
        for name, place in MECHANISMS.items()
        if name in file.text and file.path != place
    ]


def _joined(file: SourceFile) -> list[tuple[str, int]]:
    """Returns the string literals that `file` joins to a path, each with its line."""
    literals: list[ast.expr] = []
    for node in file.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            literals += [node.left, node.right]
        elif isinstance(node, ast.Call) and dotted_name(node.func).split('.')[-1] in ('join', 'joinpath', 'Path'):
            literals += node.args
    return [
        (node.value, node.lineno) for node in literals if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
