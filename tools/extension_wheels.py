"""Each extension alone: its tests by the built wheel with its extra,
in an environment that has nothing else.

    python -m tools.extension_wheels [EXTENSION ...]

The versions are those of the lane's lock. An environment of the core's packages is made once; each extension gets a
copy of it, into which pip installs the wheel with the extension's extra. Its tests run from a folder in which `scripts`
and `gin` are those of the wheel.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXTENSIONS = sorted(path.parent.name for path in (ROOT / 'tflearn' / 'extensions').glob('*/__init__.py'))
LANE = 'classic' if sys.version_info < (3, 12) else 'current'
LOCK = ROOT / 'requirements' / LANE / 'lock.txt'
_TESTS_NEED = ('pytest',)
_BUILDERS = ('setuptools', 'wheel')  # of packages that have no wheel
_SOURCES = ('tflearn', 'scripts', 'gin')  # which the wheel has
_SUMMARY = re.compile(r'^[= ]*(\d.*) in [\d.]+s', re.MULTILINE)


def main() -> None:
    """Prints a line for each extension; ends with 1 if tests of one fail."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('extensions', nargs='*', default=EXTENSIONS, metavar='EXTENSION', help=', '.join(EXTENSIONS))
    wanted = parser.parse_args().extensions
    if unknown := set(wanted) - set(EXTENSIONS):
        parser.error(f'got the extension {sorted(unknown)[0]}; need some of {", ".join(EXTENSIONS)}')
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        wheel = build_wheel(place)
        core = make_core(place / 'core', wheel)
        results = [try_alone(name, core, wheel, place / name) for name in wanted]
    sys.exit(not all(results))


def build_wheel(place: pathlib.Path) -> pathlib.Path:
    """Returns the wheel of what a clone of the checkout holds."""
    copy = place / 'checkout'
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns('.*', 'runs', 'build', '*.egg-info', '__pycache__'))
    _pip(sys.executable, 'wheel', '--quiet', '--no-deps', '--no-build-isolation', '--wheel-dir', place, copy)
    return next(place.glob('*.whl'))


def make_core(environment: pathlib.Path, wheel: pathlib.Path) -> pathlib.Path:
    """Returns an environment of what the wheel needs without extras, and its tests;
    the wheel itself is not in it.
    """
    subprocess.run([sys.executable, '-m', 'venv', environment], check=True)
    python = environment / 'bin' / 'python'
    _pip(python, 'install', '--quiet', '--constraint', LOCK, *_BUILDERS)
    _pip(python, 'install', '--quiet', '--no-build-isolation', '--constraint', LOCK, wheel, *_TESTS_NEED)
    _pip(python, 'uninstall', '--quiet', '--yes', 'tflearn-agents')
    return environment


def try_alone(name: str, core: pathlib.Path, wheel: pathlib.Path, place: pathlib.Path) -> bool:
    """Prints what the extension's tests say. Returns whether they pass."""
    start = time.monotonic()
    environment = place / 'environment'
    # Links, not copies: pip replaces files, and does not write into them.
    shutil.copytree(core, environment, symlinks=True, copy_function=os.link)
    python = environment / 'bin' / 'python'
    before = _packages(python)
    locked = place / 'constraints.txt'
    locked.write_text('\n'.join((_locked('lock') | _locked(name)).values()))
    extra = f'{wheel}[{name.replace("_", "-")}]'
    _pip(python, 'install', '--quiet', '--no-build-isolation', '--constraint', locked, extra)
    added = sorted(_packages(python) - before - {'tflearn-agents'})
    checkout = place / 'checkout'
    installed = next(environment.glob('lib/python*/site-packages'))
    # What tests read beside the sources: pages, tools, benchmarks.
    copy = wheel.parent / 'checkout'
    shutil.copytree(copy, checkout, ignore=lambda folder, _: _SOURCES if folder == str(copy) else ())
    for folder in ('scripts', 'gin'):
        (checkout / folder).symlink_to(installed / f'tflearn_{folder}')
    print(f'{name}: the wheel, and {", ".join(added) or "nothing else"}', flush=True)
    command = [python, '-m', 'pytest', '-q', '--workers=4', '--extensions=only', f'tests/extensions/{name}']
    ended = subprocess.run(command, cwd=checkout, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    summary = _SUMMARY.findall(ended.stdout)
    if ended.returncode:
        print(ended.stdout)
    said = summary[-1] if summary else f'exit code {ended.returncode}'
    print(f'{name}: {said}; {time.monotonic() - start:.0f} s with the installation', flush=True)
    shutil.rmtree(place)
    return not ended.returncode


def _locked(name: str) -> dict[str, str]:
    """Returns the lines of a lock by the packages' names; none if there is no such lock.

    That of an extra has what it adds to the lane's lock, or holds in another version.
    """
    file = ROOT / 'requirements' / LANE / f'{name}.txt'
    lines = file.read_text().splitlines() if file.exists() else []
    return {line.partition('==')[0]: line for line in lines if '==' in line}


def _packages(python: pathlib.Path) -> set[str]:
    listed = subprocess.run(
        [python, '-m', 'pip', '--disable-pip-version-check', 'list', '--format=freeze'],
        check=True, text=True, capture_output=True,
    )  # fmt: skip
    return {line.partition('==')[0] for line in listed.stdout.splitlines()}


def _pip(python: str | pathlib.Path, *arguments: str | pathlib.Path) -> None:
    subprocess.run([python, '-m', 'pip', '--disable-pip-version-check', '--no-input', *arguments], check=True)


if __name__ == '__main__':
    main()
