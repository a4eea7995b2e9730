"""The documented installs into clean environments of Python 3.11, 3.12 and 3.13: what is installed trains.

Slow, and it downloads TensorFlow each time:
`scripts/test -m slow -o faulthandler_timeout=1800 tests/clean_install_test.py`. Needs uv (UV=FILE says where it is) and
the three versions of Python, which are looked for as scripts/quickstart does.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PIP = ('--disable-pip-version-check', '--quiet')
# As in README.md and docs/: index, support-horizon, distributed. (`uv pip` and `pip` install into the environment.)
INSTALLS = {
    'classic, pip': [('pip', 'install', *PIP, '.')],
    'classic, lock': [
        ('pip', 'install', *PIP, '--require-hashes', '--no-deps', '-r', 'requirements/classic/hashed/lock.txt'),
        ('pip', 'install', *PIP, '--no-deps', '--no-build-isolation', '.'),
    ],
    'current, uv': [('uv', 'pip', 'install', '--override', 'requirements/current/overrides.txt', '.')],
    'current, lock': [
        ('pip', 'install', *PIP, '--require-hashes', '--no-deps', '-r', 'requirements/current/hashed/lock.txt'),
        ('pip', 'install', *PIP, '--no-deps', '--no-build-isolation', '.'),
    ],
    'tpu, lock': [
        ('pip', 'install', *PIP, '--require-hashes', '--no-deps', '-r', 'requirements/tpu/hashed/lock.txt'),
        ('pip', 'install', *PIP, '--no-deps', '--no-build-isolation', '.'),
    ],
}
BINDINGS = ('train.StopConditions.num_train_steps = 60', 'experience.Uniform.min_size = 100')

pytestmark = pytest.mark.slow


def run(*command: str | os.PathLike[str], cwd: pathlib.Path, timeout_secs: float = 900) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name not in ('PYTHONPATH', 'VIRTUAL_ENV', 'TFLEARN_PYTHON')
    }
    done = subprocess.run(
        command, cwd=cwd, env=environment, text=True, capture_output=True, timeout=timeout_secs, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ('version', 'install'),
    [
        (version, install)
        for version in ('3.11', '3.12', '3.13')
        for install in INSTALLS
        if install.startswith('classic') == (version == '3.11') and (version == '3.12' or not install.startswith('tpu'))
    ],
)
def test_what_is_installed_trains_and_its_policy_acts(tmp_path, version, install):
    uv = shutil.which(os.environ.get('UV', 'uv'))
    if uv is None:
        pytest.skip('needs uv; set UV=FILE')
    checkout, venv = tmp_path / 'checkout', tmp_path / 'venv'
    ignore = shutil.ignore_patterns('.venv*', '.git', '.*_cache', 'runs', 'build', 'dist', '*.egg-info', '__pycache__')
    shutil.copytree(ROOT, checkout, ignore=ignore)
    find = f'source scripts/venv.sh; versions() {{ echo {version}; }}; find_python'
    run(run('bash', '-euc', find, cwd=ROOT).strip(), '-m', 'venv', venv, cwd=tmp_path)
    python = venv / 'bin' / 'python'
    for program, *arguments in INSTALLS[install]:
        if program == 'uv':
            run(uv, 'pip', 'install', '--quiet', '--python', python, *arguments[2:], cwd=checkout)
        else:
            run(python, '-m', 'pip', *arguments, cwd=checkout)
    assert f'(Python {version}.' in run(venv / 'bin' / 'tflearn-train', '--version', cwd=tmp_path)
    bindings = [f'--gin_bindings={binding}' for binding in BINDINGS]
    run(venv / 'bin' / 'tflearn', 'synchronous', '--root_dir=run', '--gin_file=dqn_cartpole', *bindings, cwd=tmp_path)
    act = "import tflearn; print(tflearn.load_policy('run')([0.0, 0.1, 0.02, -0.3]))"
    assert run(python, '-c', act, cwd=tmp_path).strip() in ('0', '1')
