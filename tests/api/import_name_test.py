"""Another project's distribution is called `tflearn` and imported as `tflearn`: that is noticed."""

import os
import pathlib
import subprocess
import sys

import pytest

import tflearn.environments

CHECKOUT = pathlib.Path(__file__).parents[2]


def run(*arguments, first):
    """Runs Python where `first` comes before the checkout on the module path."""
    environment = {**os.environ, 'PYTHONPATH': f'{first}{os.pathsep}{CHECKOUT}'}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=first, env=environment, text=True, capture_output=True, timeout=200, check=False)


def test_a_warning_if_the_other_distribution_is_installed_too(tmp_path):
    metadata = tmp_path / 'tflearn-0.5.0.dist-info' / 'METADATA'
    metadata.parent.mkdir()
    metadata.write_text('Metadata-Version: 2.1\nName: tflearn\nVersion: 0.5.0\n')
    done = run('-c', 'import tflearn; import tflearn.core.errors', first=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count('got two distributions') == 1
    for text in (str(CHECKOUT / 'tflearn'), f'tflearn 0.5.0 (in {tmp_path}', '`pip uninstall tflearn`'):
        assert text in done.stderr


def test_a_module_that_is_not_there_is_no_attribute():
    assert not hasattr(tflearn.environments, 'unknown') and hasattr(tflearn.environments, 'pacing')
    with pytest.raises(ImportError, match="cannot import name 'gymnasum_env' from 'tflearn.environments'"):
        from tflearn.environments import gymnasum_env  # noqa: F401


def test_no_warning_otherwise(tmp_path):
    assert run('-W', 'error', '-c', 'import tflearn', first=tmp_path).stderr == ''


@pytest.mark.parametrize('text', ["raise RuntimeError('theirs')\n", None])
def test_programs_refuse_another_package_of_that_name(tmp_path, text):
    (tmp_path / 'tflearn').mkdir()
    if text:
        (tmp_path / 'tflearn' / '__init__.py').write_text(text)
        done = run('-m', 'scripts.launch', '--help', first=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(f'tflearn: error: got {tmp_path / "tflearn" / "__init__.py"} as the package')
        assert done.stderr.count('\n') == 1
    else:  # a folder without __init__.py hides nothing
        assert run('-m', 'scripts.launch', '--help', first=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ('given', 'device', 'expected'),
    [
        (None, None, '1'),
        ('0', None, '0'),
        (None, 'dev/accel0', None),
        (None, 'dev/vfio/0', None),
        (None, 'sys/bus/pci/devices/0000:00:05.0/vendor', None),
    ],
)
def test_libtpu_asks_for_metadata_where_there_is_a_tpu_alone(tmp_path, monkeypatch, given, device, expected):
    """Where there is none, TensorFlow for TPUs would wait for a server of Google's cloud at its import."""
    (tmp_path / 'libtpu').mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv('TPU_SKIP_MDS_QUERY', raising=False)
    if given:
        monkeypatch.setenv('TPU_SKIP_MDS_QUERY', given)
    if device:
        (tmp_path / device).parent.mkdir(parents=True)
        (tmp_path / device).write_text('0x1ae0\n')
    tflearn._use_no_tpu_metadata(tmp_path)
    assert os.environ.get('TPU_SKIP_MDS_QUERY') == expected


def test_import_tflearn_decides_it(tmp_path):
    program = "import os, tflearn; print(os.environ.get('TPU_SKIP_MDS_QUERY'))"
    assert run('-c', program, first=tmp_path).stdout == f'{os.environ.get("TPU_SKIP_MDS_QUERY")}\n'
    (tmp_path / 'libtpu').mkdir()
    assert run('-c', program, first=tmp_path).stdout == '1\n'
