"""Does the drop-in take the place of TF-Agents' Learner in ml-compiler-opt and in circuit_training?

    python benchmarks/clients.py --checkout=~/circuit_training

Takes a checkout of https://github.com/google/ml-compiler-opt or https://github.com/google-research/circuit_training;
what they need besides our packages is in their own instructions. Runs their tests that have to do with training twice,
with TF-Agents' learner and with ours in its place, and their own learner class over both, with one and two replicas:
with one, all losses must be equal, bit for bit. Tests that need a compiler, a placer or a missing package fail on
both sides, and are counted as such.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIDES = ('tf_agents', 'tflearn')
_ADDRESS = re.compile(' at 0x[0-9a-f]+')
# Client -> the folder that tells it, and the folders of the tests that have to do with training.
CLIENTS = {
    'circuit_training': ('circuit_training', ('circuit_training/learning', 'circuit_training/model')),
    'ml-compiler-opt': ('compiler_opt', ('compiler_opt/rl',)),
}
START = """
import sys
sys.path.insert(0, {root!r})
if {side!r} == 'tflearn':
    from benchmarks import client_learner
    client_learner.take_over()
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def main() -> int:
    """Runs the tests and the learners; returns 1 if anything that runs with TF-Agents does not run with ours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--checkout', type=pathlib.Path, required=True)
    parser.add_argument('--timeout_secs', type=float, default=1800.0, help='for the tests of one side')
    parser.add_argument('--json', type=pathlib.Path, default=None, help='writes the results there')
    parser.add_argument('--only', choices=['tests', 'learner'], default=None)
    options = parser.parse_args()
    checkout = options.checkout.expanduser().resolve()
    clients = [name for name, (folder, _) in CLIENTS.items() if (checkout / folder).is_dir()]
    if not clients:
        parser.error(f'got --checkout={checkout}; need a checkout of {" or ".join(CLIENTS)}')
    results: dict[str, object] = {'client': clients[0]}
    failed = False
    if options.only != 'learner':
        tests = {side: _tests(checkout, clients[0], side, options.timeout_secs) for side in SIDES}
        failed |= _report_tests(tests)
        results['tests'] = tests
    if options.only != 'tests':
        for replicas in (1, 2):
            losses = {side: _losses(checkout, clients[0], side, replicas) for side in SIDES}
            failed |= _report_losses(losses, replicas)
            results[f'losses of {replicas} replicas'] = losses
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + '\n')
    return int(failed)


def _environment(checkout: pathlib.Path) -> dict[str, str]:
    paths = [str(checkout), str(ROOT), *os.environ.get('PYTHONPATH', '').split(os.pathsep)]
    variables = {'PYTHONPATH': os.pathsep.join(filter(None, paths)), 'TEST_SRCDIR': str(checkout)}
    # TensorFlow imports setuptools, whose own copies of packages would be taken for plugins of pytest.
    variables |= {'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1', 'PYTHONDONTWRITEBYTECODE': '1', 'CUDA_VISIBLE_DEVICES': '-1'}
    return {**os.environ, **variables}


def _tests(checkout: pathlib.Path, client: str, side: str, timeout_secs: float) -> dict[str, str]:
    """Returns what became of each test of one side: 'passed', 'skipped', or the first line of its failure."""
    folders = [str(checkout / folder) for folder in CLIENTS[client][1]]
    with tempfile.TemporaryDirectory() as temporary:
        report = pathlib.Path(temporary, 'report.xml')
        flags = ['-q', '-p', 'no:cacheprovider', '--continue-on-collection-errors', f'--junitxml={report}']
        flags += ['-o', 'python_files=*_test.py', *folders]
        command = [sys.executable, '-c', START.format(root=str(ROOT), side=side), *flags]
        subprocess.run(
            command, cwd=checkout, env=_environment(checkout), stdout=sys.stderr, timeout=timeout_secs, check=False
        )
        if not report.exists():
            raise RuntimeError(f'the tests of {checkout} did not start, with the learner of {side}')
        cases = xml.etree.ElementTree.parse(report).iter('testcase')
        # Names of parameters may hold addresses of functions, which differ from process to process.
        return {_ADDRESS.sub('', f'{case.get("classname")}.{case.get("name")}'): _outcome(case) for case in cases}


def _outcome(case: xml.etree.ElementTree.Element) -> str:
    for child in case:
        if child.tag == 'skipped':
            return 'skipped'
        if child.tag in ('failure', 'error'):
            text = [line[1:].strip() for line in (child.text or '').splitlines() if line.startswith('E  ')]
            return (text[-1] if text else child.get('message', '').partition('\n')[0])[:150] or child.tag
    return 'passed'


def _report_tests(tests: Mapping[str, Mapping[str, str]]) -> bool:
    """Prints a table; returns whether a test passes with TF-Agents' learner alone."""
    theirs, ours = (tests[side] for side in SIDES)
    passed = [name for name, outcome in theirs.items() if outcome == 'passed']
    worse = [name for name in passed if ours.get(name) != 'passed']
    better = [name for name, outcome in ours.items() if outcome == 'passed' and theirs.get(name) != 'passed']
    print('| tests | |\n|---|---|')
    print(f'| pass with both | {len(passed) - len(worse)} |')
    print(f"| pass with TF-Agents' alone | {len(worse)} |")
    print(f'| pass with ours alone | {len(better)} |')
    reasons = collections.Counter(outcome for outcome in theirs.values() if outcome != 'passed')
    for reason, count in reasons.most_common():
        print(f'| not with either: {reason} | {count} |')
    for name in worse:
        print(f'with ours, {name}: {ours.get(name, "did not run")}')
    return bool(worse) or not passed


def _losses(checkout: pathlib.Path, client: str, side: str, replicas: int) -> dict[str, object]:
    command = [sys.executable, '-m', 'benchmarks.client_learner', f'--client={client}', f'--side={side}']
    done = subprocess.run(
        [*command, f'--replicas={replicas}'],
        cwd=checkout,
        env=_environment(checkout),
        stdout=subprocess.PIPE,
        timeout=600,
        check=True,
        text=True,
    )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def _report_losses(losses: Mapping[str, Mapping[str, object]], replicas: int) -> bool:
    """Prints the losses of both sides; returns whether they are not as they should be."""
    theirs, ours = (losses[side] for side in SIDES)
    equal = theirs['losses'] == ours['losses'] and theirs['train_step'] == ours['train_step']
    numbers = [_numbers(side['losses']) for side in (theirs, ours)]
    print(f'{replicas} replicas, train steps {theirs["train_step"]} and {ours["train_step"]}, losses equal: {equal}')
    for side, found in zip(SIDES, numbers, strict=True):
        print(f'  {side}: {", ".join(f"{loss:.9g}" for loss in found)}')
    finite = all(math.isfinite(loss) for found in numbers for loss in found)
    return not finite or (replicas == 1 and not equal)


def _numbers(losses: object) -> Sequence[float]:
    return [float.fromhex(loss) for loss in losses] if isinstance(losses, list) else []


if __name__ == '__main__':
    sys.exit(main())
