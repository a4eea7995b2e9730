"""Batch scripts, and submission to programs that record what they get; the real ones are in slurm_run_test.py."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.testing import command_lines
from tflearn.core.errors import UserValueError
from tflearn.extensions.clusters import places, slurm
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.topology import COORDINATOR_ADDRESS, OWN_ADDRESS, Addresses, Resources, load, run_topology

RESOURCES = {
    'train': Resources(cores=4, memory_gb=8.0, accelerators=2, accelerator='a100'),
    'collect': Resources(cores=1, custom={'sim': 1}),
}


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path / 'my run')


def topology(num_workers=1, **given):
    given = {'num_collectors': 3, 'resources': RESOURCES, 'num_workers': num_workers, **given}
    return run_topology(package='p', flags=['--x=a b'], **given)


def directives(script):
    return re.findall(r'^#SBATCH (.*)$', script, re.M)


def test_each_kind_of_job_has_a_script_that_bash_can_read(run_dir):
    made = slurm.scripts(topology(), run_dir, 'p', slurm.SlurmOptions(setup='module load x'))
    assert list(made) == ['replay_server', 'train', 'evaluate', 'collect']
    for script in made.values():
        assert subprocess.run(['bash', '-n'], input=script, text=True, timeout=20).returncode == 0
        assert {'--requeue', '--open-mode=append', '--signal=B:TERM@80'} <= set(directives(script))
        assert script.index('module load x') < script.index('p.supervise')
    assert f"--root_dir={run_dir.root}' --job=train &" in made['train']
    assert '--job=collect_"$SLURM_ARRAY_TASK_ID" &' in made['collect']


def test_resources_and_options_are_those_of_slurm(run_dir):
    its_options = slurm.SlurmOptions(partition='gpu', time='04:00:00', sbatch='--constraint="a b" --exclusive')
    made = slurm.scripts(topology(num_workers=2), run_dir, 'p', its_options)
    train, collect = directives(made['train']), directives(made['collect'])
    assert {'--nodes=2', '--ntasks=2', '--cpus-per-task=4', '--mem=7629M', '--gpus-per-node=a100:2'} <= set(train)
    assert {'--array=0-2', '--cpus-per-task=1', '--gres=sim:1', '--nodes=1'} <= set(collect)
    assert {'--partition=gpu', '--time=04:00:00', "--constraint='a b'", '--exclusive'} <= set(collect)
    assert not any(line.startswith(('--qos', '--account')) for line in collect)


def test_a_directory_with_any_name_is_one_directive(tmp_path):
    run_dir = RunDir(tmp_path / "it's 100%a # run")
    train = directives(slurm.scripts(topology(), run_dir, 'p', slurm.SlurmOptions())['train'])
    (output,) = [line for line in train if line.startswith('--output')]
    assert shlex.split(output) == [f"--output={tmp_path}/it's 100%%a # run/logs/slurm_train.log"]


@pytest.mark.parametrize('where', ['root_dir', 'partition', 'sbatch'])
def test_a_line_break_becomes_no_command_of_the_script(tmp_path, where):
    text = 'a\ntouch /tmp/owned'
    given = {} if where == 'root_dir' else {where: f"--comment='{text}'" if where == 'sbatch' else text}
    with pytest.raises(UserValueError, match='a line break would end the comment|a path without control'):
        run_dir = RunDir(tmp_path / (text.replace('/', '_') if where == 'root_dir' else 'run'))
        slurm.scripts(topology(), run_dir, 'p', slurm.SlurmOptions(**given))


def test_workers_of_a_learner_are_the_tasks_of_a_step(run_dir):
    jobs = {job.name: job for job in slurm.with_steps(topology(num_workers=2), run_dir, 'p').jobs}
    program, flag, script, *arguments = jobs['train'].command
    assert (program, flag) == ('bash', '-c')
    assert subprocess.run(['bash', '-n'], input=script, text=True, timeout=20).returncode == 0
    where = f'--coordinator_address={COORDINATOR_ADDRESS}'
    assert arguments == [
        *('srun', '--nodes=2', '--ntasks=2', '--ntasks-per-node=1', '--cpus-per-task=4'),
        *(sys.executable, '-m', 'p.worker', str(run_dir.root), '300.0'),
        *(sys.executable, '-m', 'p.train', '--x=a b', where, '--strategy=multi_worker'),
    ]
    assert slurm.with_steps(topology(), run_dir, 'p').jobs == topology().jobs


FAKE = """#!/bin/bash
echo "$(basename "$0") $*" >> {root}/calls
case $(basename "$0") in
  sbatch) cat > {root}/script; n=$(grep -c ^sbatch {root}/calls)
    [[ $n != "${{FAIL_AT:-}}" ]] || {{ echo no such partition >&2; exit 1; }}
    echo "$((100 + n));cluster" ;;
  squeue) echo "${{ALIVE:-}}" ;;
  scontrol) echo 'KillWait                = 30 sec' ;;
esac
"""


def test_shards_and_relays_are_job_arrays(run_dir):
    addresses = Addresses(replay=(OWN_ADDRESS,) * 3, relays=(OWN_ADDRESS,) * 2, alone=True)
    shards = run_topology(package='p', flags=[], num_collectors=1, addresses=addresses)
    made = slurm.scripts(shards, run_dir, 'p', slurm.SlurmOptions(setup='module load x'))
    assert list(made) == ['coordinator', 'replay_server', 'relay', 'train', 'evaluate', 'collect']
    assert '--array=0-2' in directives(made['replay_server']) and '--array=0-1' in directives(made['relay'])
    assert not any(line.startswith('--array') for line in directives(made['coordinator']))
    names = {}
    for kind in ('replay_server', 'relay'):
        begin, _, rest = made[kind].partition('-m p.supervise')
        job = rest.partition(' --job=')[2].partition(' &')[0]
        setup = begin.partition('module load x')[2].rpartition('\n')[0]
        script = f'for SLURM_ARRAY_TASK_ID in 0 1 10; do {setup}\necho {job}; done'
        names[kind] = subprocess.run(['bash', '-c', script], capture_output=True, text=True, timeout=20).stdout.split()
    assert names['replay_server'] == ['replay_server', 'replay_server_1', 'replay_server_10']
    assert names['relay'] == ['relay_0', 'relay_1', 'relay_10']


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The commands that Slurm's programs were called with; the programs only record them."""
    for name in ('sbatch', 'squeue', 'scontrol', 'scancel'):
        path = tmp_path / 'bin' / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(FAKE.format(root=tmp_path))
        path.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path / "bin"}:{os.environ["PATH"]}')
    return lambda: (tmp_path / 'calls').read_text().splitlines()


def test_submits_in_order_and_reports_what_to_do(run_dir, calls, monkeypatch):
    run_dir.make()
    run_dir.failure.write_text('{}')
    text = slurm.submit(topology(), run_dir, 'p', slurm.SlurmOptions())
    assert text.startswith('Submitted: replay_server 101, train 102, evaluate 103, collect 104.\n')
    assert 'a plain scancel kills after 30 s (KillWait), the jobs may take 60 s' in text
    submitted = [call for call in calls() if call.startswith('sbatch')]
    assert [re.findall(r'--dependency=(\S+)', call) for call in submitted] == [
        [],
        ['after:101'],
        ['after:102'],
        ['after:101'],
    ]
    assert read_json(run_dir.submitted)['slurm']['collect'] == '104'
    assert load(run_dir) == slurm.with_steps(topology(), run_dir, 'p')
    assert not run_dir.failure.exists()
    monkeypatch.setenv('ALIVE', '101 101 103 103 104 104 105 104')
    assert slurm.submit(topology(), run_dir, 'p', slurm.SlurmOptions()).startswith('Submitted: train 105.\n')
    monkeypatch.setenv('ALIVE', '101 101 103 103 104 104 105 105')
    with pytest.raises(ValueError, match='whose jobs all wait or run; need a directory for each run'):
        slurm.submit(topology(), run_dir, 'p', slurm.SlurmOptions())
    with pytest.raises(ValueError, match='got other settings than those of the jobs 101, 103, 104, 105'):
        slurm.submit(topology(num_workers=2), run_dir, 'p', slurm.SlurmOptions())


def test_a_job_that_is_refused_cancels_those_before_it(run_dir, calls, monkeypatch):
    monkeypatch.setenv('FAIL_AT', '3')
    run_dir.make()
    with pytest.raises(RuntimeError, match='got an error from sbatch: no such partition'):
        slurm.submit(topology(), run_dir, 'p', slurm.SlurmOptions())
    assert calls()[-1] == 'scancel 101 102'


def test_a_machine_without_slurm_is_named(run_dir, monkeypatch):
    monkeypatch.setenv('PATH', '')
    with pytest.raises(FileNotFoundError, match="got no program 'sbatch'; need a machine from which.*--render"):
        slurm.submit(topology(), run_dir, 'p', slurm.SlurmOptions())


def test_rendered_text_has_all_scripts(run_dir):
    text = slurm.render(topology(), run_dir, 'p', slurm.SlurmOptions())
    assert re.findall(r'^# (\w+): sbatch(.*) < ', text, re.M) == [
        ('replay_server', ''),
        ('train', ' --dependency=after:<the number of replay_server>'),
        ('evaluate', ' --dependency=after:<the number of train>'),
        ('collect', ' --dependency=after:<the number of replay_server>'),
    ]


def test_replay_servers_begin_after_a_coordinator_that_is_alone(run_dir):
    text = slurm.render(topology(addresses=Addresses(alone=True)), run_dir, 'p', slurm.SlurmOptions())
    found = dict(re.findall(r'^# (\w+): sbatch(.*) < ', text, re.M))
    assert found['coordinator'] == '' and found['replay_server'] == ' --dependency=after:<the number of coordinator>'


@pytest.mark.parametrize('text', ['time', 'tiem=1', 'time='])
def test_options_are_read_by_name(text):
    if text == 'time=':
        assert places.read_options(slurm.SlurmOptions, [text, 'qos=low']) == slurm.SlurmOptions(qos='low')
        return
    advice = r', an option that this backend does not have \(did you mean time\?\)' if '=' in text else ''
    with pytest.raises(ValueError, match=f'got --backend_option={text}{advice}; need .*partition,'):
        places.read_options(slurm.SlurmOptions, [text])


def test_a_launch_renders_what_it_would_submit(tmp_path):
    flags = [f'--root_dir={tmp_path / "run"}', '--gin_file=dqn_cartpole', '--backend=slurm', '--render']
    flags += ['--num_collectors=2', '--resources=collect:cores=1']
    done = command_lines.run('launch', *flags, timeout=60.0)
    assert done.returncode == 0, done.stderr
    assert '#SBATCH --array=0-1' in done.stdout and '-m scripts.supervise' in done.stdout
    assert not (tmp_path / 'run').exists()
