"""Manifests: complete, and consistent with each other and with the run's settings."""

import dataclasses
import json
import os
import subprocess

import pytest
import yaml

from tests.extensions.clusters.rendered import (
    ALONE,
    FULL,
    IMAGE,
    SERVE,
    SMALL,
    TPU,
    by_kind,
    container,
    gang,
    manifests,
    templates,
)
from tests.testing import command_lines
from tflearn.core.errors import DEADLINE_EXIT_STATUS
from tflearn.extensions.clusters import kubernetes, places
from tflearn.extensions.clusters.kubernetes import KubernetesOptions
from tflearn.files.run_dir import RunDir
from tflearn.launch.topology import Resources, run_topology


def test_a_run_has_all_its_objects():
    made, _ = manifests()
    assert [item['kind'] for item in made] == [
        *('LocalQueue', 'JobSet', 'Deployment', 'HorizontalPodAutoscaler', 'Deployment', 'PodMonitor', 'NetworkPolicy'),
        'PodDisruptionBudget',
    ]
    servers, _ = manifests(SERVE)
    kinds = ['Service', 'Deployment', 'PodMonitor', 'PodDisruptionBudget']
    assert [item['kind'] for item in servers] == kinds, 'what outlives the run is rendered alone'
    assert {item['metadata']['namespace'] for item in made + servers} == {'agents'}
    keys = [(item['kind'], item['metadata']['name']) for item in made + servers]
    assert len(set(keys)) == len(keys)
    small, _ = manifests(SMALL, num_workers=1, resources={})
    assert [item['kind'] for item in small] == ['JobSet', 'Deployment', 'NetworkPolicy']
    assert sorted(templates(small)) == ['collect', 'evaluate', 'metrics', 'replay_server', 'train']


def test_all_jobs_are_one_gang():
    """Kueue admits a JobSet as a whole: no job waits for one that was not admitted."""
    made, _ = manifests(KubernetesOptions(pods=FULL.pods, queue='learners'))
    jobset = by_kind(made, 'JobSet')
    assert jobset['metadata']['labels']['kueue.x-k8s.io/queue-name'] == 'learners'
    assert 'suspend' not in jobset['spec'], 'that is the webhook of Kueue: applied again it would stop the run'
    counts = {name: (job['parallelism'], job['completions']) for name, job in gang(made).items()}
    assert counts == {'replay': (1, 1), 'learner': (2, 2), 'evaluate': (1, 1), 'collect': (16, 16)}
    assert jobset['spec']['successPolicy'] == {'operator': 'All', 'targetReplicatedJobs': ['learner', 'evaluate']}
    alone, _ = manifests(SMALL, addresses=ALONE)
    assert [*gang(alone)] == ['replay', 'coordinator', 'relay', 'learner', 'evaluate', 'collect']
    most, _ = manifests(SMALL, name='r' * 200, addresses=ALONE, num_collectors=10_000)
    name = by_kind(most, 'JobSet')['metadata']['name']
    pods = [f'{name}-{kind}-0-{job["completions"] - 1}-abcde' for kind, job in gang(most).items()]
    assert max(map(len, pods)) <= 63, 'the name of a pod'


def test_a_pod_is_started_again_by_itself_and_workers_together():
    one, _ = manifests(SMALL, num_workers=1)
    for name, job in gang(one).items():
        assert (job.get('backoffLimit'), job['backoffLimitPerIndex']) == (None, 20)
        assert [rule['action'] for rule in job['podFailurePolicy']['rules']] == ['FailJob', 'Ignore']
        assert job.get('maxFailedIndexes') == (None if name == 'collect' else 0), 'a run goes on without a collector'
    two, _ = manifests(SMALL, num_workers=2)
    learner = gang(two)['learner']
    assert learner['backoffLimit'] == 0 and 'backoffLimitPerIndex' not in learner
    reasons = ['PodFailurePolicy', 'DeadlineExceeded']
    assert by_kind(two, 'JobSet')['spec']['failurePolicy'] == {
        'maxRestarts': 40,
        'rules': [{'name': 'final', 'action': 'FailJobSet', 'onJobFailureReasons': reasons}],
    }
    assert by_kind(one, 'JobSet')['spec']['failurePolicy']['maxRestarts'] == 20


def test_a_deadline_is_the_learners_which_saves_before_the_others_are_stopped():
    made, _ = manifests()
    assert gang(made)['learner']['activeDeadlineSeconds'] == 86_400
    assert [name for name, job in gang(made).items() if 'activeDeadlineSeconds' in job] == ['learner']


def test_runs_in_different_places_have_different_names():
    def name(root, *options):
        run_dir = RunDir(root)
        topology = run_topology(package='scripts', flags=[], num_collectors=1)
        options = places.read_options(KubernetesOptions, [IMAGE, *options])
        return by_kind(kubernetes.manifests(topology, run_dir, options), 'JobSet')['metadata']['name']

    places_of_runs = [('/a/cartpole',), ('/b/cartpole',), ('/a/cartpole', 'claim=ours'), ('/a/cartpole', 'sub_path=b')]
    names = [name(*each) for each in places_of_runs]
    assert len(set(names)) == 4 and all(each.startswith('tflearn-cartpole-') for each in names)
    assert names == [name(*each) for each in places_of_runs], 'the same command means the same run'


def test_a_token_is_read_from_a_secret():
    made, _ = manifests(addresses=ALONE)
    reference = {'secretKeyRef': {'name': 'cartpole', 'key': 'token'}}
    for kind in ('replay_server', 'coordinator', 'relay', 'train', 'evaluate', 'collect'):
        assert '--coordinator_token=env:TFLEARN_COORDINATOR_TOKEN' in container(made, kind)['args']
        (found,) = [each for each in container(made, kind)['env'] if each['name'] == 'TFLEARN_COORDINATOR_TOKEN']
        assert found['valueFrom'] == reference


def test_selectors_find_the_pods_that_they_mean():
    made, _ = manifests()
    made += manifests(SERVE)[0]
    pods = templates(made)

    def matched(selector):
        def fits(labels):
            if any(labels.get(key) != value for key, value in selector.get('matchLabels', {}).items()):
                return False
            return all(labels.get(term['key']) in term['values'] for term in selector.get('matchExpressions', []))

        return sorted(kind for kind, template in pods.items() if fits(template['metadata']['labels']))

    for item in made:
        spec = item['spec']
        if item['kind'] == 'Deployment':
            assert matched(spec['selector']) == [spec['template']['metadata']['labels']['tflearn/job']]
        if item['kind'] == 'Service':
            (kind,) = matched({'matchLabels': spec['selector']})
            ports = [port['name'] for port in container(made, kind)['ports'] if port['name'] != 'metrics']
            assert [port['targetPort'] for port in spec['ports']] == ports
        if item['kind'] == 'PodMonitor':
            (kind,) = matched(spec['selector'])
            (scraped,) = spec['podMetricsEndpoints']
            assert scraped['port'] in [port['name'] for port in container(made, kind)['ports']]
            assert item['metadata']['labels']['release'] == 'prometheus'
    budgets = [item['spec'] for item in made if item['kind'] == 'PodDisruptionBudget']
    assert [matched(spec['selector']) for spec in budgets] == [['collect'], ['serve']], 'no drain waits for somebody'
    network = by_kind(made, 'NetworkPolicy')['spec']
    assert matched(network['podSelector']) == ['collect', 'evaluate', 'replay_server', 'train']
    one, _ = manifests(num_workers=1)
    every, worker = ['collect', 'evaluate', 'replay_server', 'train'], [(['train'], 2222)]
    for rules, more in ((network['ingress'], worker), (by_kind(one, 'NetworkPolicy')['spec']['ingress'], [])):
        who = [(matched(rule['from'][0]['podSelector']), rule['ports'][0]['port']) for rule in rules]
        assert who == [(['collect', 'evaluate', 'train'], 8008), (every, 8009), *more]


def test_jobs_find_each_other():
    made, topology = manifests()
    jobset = by_kind(made, 'JobSet')
    name, domain = jobset['metadata']['name'], jobset['spec']['network']['subdomain']
    replay = f'{name}-replay-0-0.{domain}'  # a pod of an indexed Job keeps its name
    for kind in ('replay_server', 'train', 'evaluate', 'collect'):
        assert f'--coordinator_address={replay}:8009' in container(made, kind)['args']
        (own,) = [job for job in topology.jobs if job.name in (kind, f'{kind}_0')]
        assert container(made, kind)['command'] == ['tflearn-' + own.kind.replace('_', '-')]
    assert f'--replay_address={replay}:8008' in container(made, 'replay_server')['args']
    ports = {port['name']: port['containerPort'] for port in container(made, 'replay_server')['ports']}
    assert ports == {'replay': 8008, 'coordinator': 8009}
    assert '--collector_name=$(POD_NAME)' in container(made, 'collect')['args']
    assert {job['completionMode'] for job in gang(made).values()} == {'Indexed'}
    environment = {item['name']: item for item in container(made, 'train')['env']}
    text = environment['TF_CONFIG']['value'].replace('$(WORKER_INDEX)', '1')
    assert json.loads(text) == {
        'cluster': {'worker': [f'{name}-learner-0-{i}.{domain}:2222' for i in range(2)]},
        'task': {'type': 'worker', 'index': 1},
    }
    names = list(environment)
    assert names.index('WORKER_INDEX') < names.index('TF_CONFIG'), 'a variable that another one uses comes first'
    one, _ = manifests(SMALL, num_workers=1)
    assert 'TF_CONFIG' not in str(container(one, 'train')['env'])


def test_shards_and_relays_are_pods_with_addresses():
    made, _ = manifests(addresses=ALONE)
    run = by_kind(made, 'JobSet')['metadata']['name']
    counts = {name: job['completions'] for name, job in gang(made).items()}
    assert counts == {'replay': 3, 'coordinator': 1, 'relay': 2, 'learner': 2, 'evaluate': 1}
    where = f'--coordinator_address={run}-coordinator-0-0.{run}:8009'
    for kind in ('replay_server', 'train', 'collect'):
        assert where in container(made, kind)['args']
    own = f'--replay_address={run}-replay-0-$(INDEX).{run}:8008'
    assert {own, '--num_shards=3', '--noserve_coordinator'} <= {*container(made, 'replay_server')['args']}
    assert '--shard=$(INDEX)' in container(made, 'replay_server')['args']
    index = container(made, 'replay_server')['env'][0]['valueFrom']['fieldRef']['fieldPath']
    assert index.endswith("job-completion-index']")
    own = f'--relay_address={run}-relay-0-$(INDEX).{run}:8010'
    assert container(made, 'relay')['args'] == [
        *(where, '--run_dir=/runs/a', own, '--coordinator_token=env:TFLEARN_COORDINATOR_TOKEN'),
        *('--name=relay_$(INDEX)', '--index=$(INDEX)'),
    ]
    assert container(made, 'coordinator')['command'] == ['tflearn-coordinator']
    assert by_kind(made, 'Deployment', '-metrics')['spec']['replicas'] == 1, 'numbers are counted once'


def test_resources_queues_and_nodes():
    made, _ = manifests()
    assert container(made, 'train')['resources'] == {
        'requests': {'cpu': '8', 'memory': '16000M', 'nvidia.com/gpu': '4'},
        'limits': {'memory': '16000M', 'nvidia.com/gpu': '4'},
    }
    assert container(made, 'collect')['resources']['limits'] == {'memory': '1500M', 'example.com/simulator': '1'}
    assert templates(made)['train']['spec']['nodeSelector'] == {'cloud.google.com/gke-accelerator': 'nvidia-l4'}
    assert by_kind(made, 'LocalQueue')['metadata']['name'] == 'learners'
    for template in templates(made).values():
        assert template['spec']['containers'][0]['resources']['limits'].keys() >= {'memory'}
    scaler, deployment = by_kind(made, 'HorizontalPodAutoscaler')['spec'], by_kind(made, 'Deployment', '-collect')
    assert scaler['scaleTargetRef']['name'] == deployment['metadata']['name']
    assert (scaler['minReplicas'], scaler['maxReplicas']) == (16, 64) and 'replicas' not in deployment['spec']
    metric = scaler['metrics'][0]['external']['metric']
    metrics = container(made, 'metrics')
    assert metrics['command'] == ['tflearn'] and metrics['args'][0] == 'run-metrics'
    assert f'--run={metric["selector"]["matchLabels"]["run"]}' in metrics['args']
    chips = Resources(accelerators=8, accelerator='tpu-v5-lite-podslice')
    tpu, _ = manifests(TPU, num_workers=1, resources={'train': chips})
    assert container(tpu, 'train')['resources']['limits']['google.com/tpu'] == '8'
    assert '--strategy=tpu:local' in container(tpu, 'train')['args']
    assert templates(tpu)['train']['spec']['nodeSelector'] == {
        'cloud.google.com/gke-tpu-accelerator': 'tpu-v5-lite-podslice',
        'cloud.google.com/gke-tpu-topology': '2x4',
    }
    jobs = by_kind(tpu, 'JobSet')['spec']['replicatedJobs']
    on_own_nodes = [job['name'] for job in jobs if 'exclusive-topology' in str(job['template']['metadata'])]
    assert on_own_nodes == ['learner']


def test_pods_have_time_to_stop_volumes_and_no_rights():
    made, topology = manifests()
    made += manifests(SERVE)[0]
    for kind, template in templates(made).items():
        pod = template['spec']
        assert pod['terminationGracePeriodSeconds'] > topology.stop_timeout_secs
        for each in pod['containers']:
            assert [mount['name'] for mount in each['volumeMounts']] == [volume['name'] for volume in pod['volumes']]
            assert each['resources']['requests'].keys() >= {'cpu', 'memory'}, 'the first to be evicted'
            run, temporary = each['volumeMounts']
            assert (run['mountPath'], run['subPath']) == ('/runs/My_Run', 'teams/rl')
            assert run.get('readOnly') == (True if kind == 'metrics' else None)
            environment = {item['name']: item for item in each['env']}
            assert environment['HOME']['value'] == temporary['mountPath'] == '/tmp', 'all else is read-only'
            threads = environment['TF_NUM_INTRAOP_THREADS']['valueFrom']
            assert threads == {'resourceFieldRef': {'resource': 'requests.cpu'}}, "else as many as the node's cores"
    for kind in ('metrics', 'serve'):
        assert container(made, kind)['livenessProbe']['httpGet'] == {'path': '/metrics', 'port': 'metrics'}
    serve = container(made, 'serve')
    assert {'--policies=greedy_policy', '--metrics_port=9100'} <= {*serve['args']}, 'none that explores'
    ports = {each['name']: each['containerPort'] for each in serve['ports']}
    assert {f'--port={ports["grpc"]}', f'--rest_port={ports["rest"]}'} <= {*serve['args']}
    service = by_kind(made, 'Service', '-serve')['spec']['ports']
    assert [(each['targetPort'], each['port']) for each in service] == [('grpc', 8500), ('rest', 8501)]


def test_what_ends_a_run_keeps_its_directory():
    """The claim is in a list of its own; or it is one that is there."""
    own = places.read_options(KubernetesOptions, ['part=claims', 'storage_class=fast', 'sub_path=teams/rl'])
    (claim,), _ = manifests(own)
    assert (claim['kind'], claim['spec']['storageClassName']) == ('PersistentVolumeClaim', 'fast')
    made, _ = manifests()
    assert not any(item['kind'] == 'PersistentVolumeClaim' or 'volumeClaimTemplates' in item['spec'] for item in made)
    there, _ = manifests(places.read_options(KubernetesOptions, [IMAGE, 'claim=ours']))
    for result, name in ((made, claim['metadata']['name']), (there, 'ours')):
        for template in templates(result).values():
            volumes = template['spec']['volumes']
            assert [each['persistentVolumeClaim']['claimName'] for each in volumes if each['name'] == 'run'] == [name]


def test_collectors_end_with_the_run_unless_an_autoscaler_counts_them():
    made, _ = manifests(SMALL)
    job = gang(made)['collect']
    assert job['completions'] == 16 and job['template']['spec']['restartPolicy'] == 'Never'
    assert container(made, 'collect')['args'][-1] == '--collector_name=collect_$(INDEX)'
    assert by_kind(made, 'JobSet')['spec']['ttlSecondsAfterFinished'] > 86_400
    scaled, _ = manifests(FULL)
    assert 'collect' not in gang(scaled) and by_kind(scaled, 'Deployment', '-collect')


def test_a_deadline_is_tried_again_and_only_a_users_error_is_final():
    made, _ = manifests(SMALL)
    assert len(gang(made)) == 4
    for job in gang(made).values():
        rules = [rule['onExitCodes'] for rule in job['podFailurePolicy']['rules'] if 'onExitCodes' in rule]
        assert rules == [{'operator': 'In', 'values': [2]}] and DEADLINE_EXIT_STATUS != 2


PATCH = {
    '*': {
        'pod': {'imagePullSecrets': [{'name': 'registry'}], 'serviceAccountName': 'agents'},
        'container': {'envFrom': [{'secretRef': {'name': 'keys'}}]},
        'metadata': {'annotations': {'team': 'rl'}},
    },
    'train': {
        'pod': {
            'tolerations': [{'key': 'gpu', 'operator': 'Exists'}],
            'nodeSelector': {'zone': 'b'},
            'volumes': [{'name': 'tls', 'secret': {'secretName': 'tls'}}],
            'containers': [{'name': 'tunnel', 'image': 'stunnel'}],
        },
        'container': {
            'env': [{'name': 'PROXY', 'value': 'none'}],
            'volumeMounts': [{'name': 'tls', 'mountPath': '/secrets/tls', 'readOnly': True}],
        },
    },
    'serve': {'container': {'resources': {'limits': {'memory': '3G'}}}},
    'run': {'metadata': {'labels': {'kueue.x-k8s.io/priority-class': 'high'}}},
}


def test_a_file_is_merged_into_pods(tmp_path):
    file = tmp_path / 'patch.json'
    file.write_text(yaml.safe_dump(PATCH))
    patched = places.read_options(
        KubernetesOptions, [IMAGE, f'patch={file}', 'accelerator_label=nvidia.com/gpu.product', 'queue=learners']
    )
    made, _ = manifests(patched)
    made += manifests(dataclasses.replace(patched, part='serve'))[0]
    for template in templates(made).values():
        assert template['spec']['imagePullSecrets'] == [{'name': 'registry'}]
        assert template['spec']['containers'][0]['envFrom'] == [{'secretRef': {'name': 'keys'}}]
        assert template['metadata']['annotations']['team'] == 'rl'
    jobset = by_kind(made, 'JobSet')['metadata']
    assert jobset['labels']['kueue.x-k8s.io/priority-class'] == 'high' and jobset['labels']['tflearn/job'] == 'run'
    assert jobset['labels']['kueue.x-k8s.io/queue-name'] == 'learners'
    train = templates(made)['train']['spec']
    assert train['nodeSelector'] == {'nvidia.com/gpu.product': 'nvidia-l4', 'zone': 'b'}
    assert [volume['name'] for volume in train['volumes']] == ['run', 'tmp', 'tls']
    assert [each['name'] for each in train['containers']][1:] == ['tunnel']
    assert [item['name'] for item in train['containers'][0]['env']][-3:] == ['WORKER_INDEX', 'TF_CONFIG', 'PROXY']
    serve = container(made, 'serve')['resources']
    assert serve['limits'] == {'memory': '3G'} and serve['requests']['memory']
    for text, message in (
        ('{', 'cannot be read'),
        ('[]', 'with no object; need'),
        ('{"trian": {}}', r'with trian; need \{KIND: .* of the kinds \*, train'),
        ('{"train": {"spec": {}}}', 'with train.spec; need'),
        ('{"run": {"pod": {}}}', 'with run.pod; need .* or run, with metadata alone'),
        ('{"train": {"pod": []}}', 'with train.pod; need'),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            manifests(patched)


def test_gin_files_that_no_image_has_are_sent():
    made, _ = manifests(gin_files={'mine.gin': 'include "parts/a.gin"', 'parts/a.gin': 'a = 1'})
    config = by_kind(made, 'ConfigMap')
    assert sorted(config['data'].values()) == ['a = 1', 'include "parts/a.gin"']


@pytest.mark.parametrize(
    ('state', 'age_secs', 'alive'),
    [('running', 0, True), ('running', 900, False), ('waiting', 900, True), (None, 0, True)],
)
def test_a_job_is_alive_while_it_reports(tmp_path, state, age_secs, alive):
    topology = run_topology(package='scripts', flags=[], num_collectors=1, addresses=ALONE)
    topology = type(topology)(topology.jobs, silent_timeout_secs=300.0)
    made = kubernetes.manifests(topology, RunDir(tmp_path), FULL)
    for kind, variable, name in (
        ('collect', 'POD_NAME=pod-7', 'pod-7'),
        ('replay_server', 'INDEX=0', 'replay_server'),
        ('replay_server', 'INDEX=2', 'replay_server_2'),
        ('relay', 'INDEX=0', 'relay_0'),
    ):
        probe, status = container(made, kind)['livenessProbe'], RunDir(tmp_path).status(name)
        if state:
            status.parent.mkdir(exist_ok=True)
            status.write_text(json.dumps({'job': name, 'state': state}, indent=2))
            os.utime(status, (status.stat().st_mtime - age_secs,) * 2)
        command = ['env', variable, *probe['exec']['command']]
        assert (subprocess.run(command, timeout=20, check=False).returncode == 0) == alive, kind


@pytest.mark.parametrize(
    ('texts', 'message'),
    [
        (['cluster_queue=a'], 'got cluster_queue without queue'),
        (['tpu_topology=8'], 'need a layout such as 2x4'),
        (['storage_gb=big'], 'need a number, such as storage_gb=50'),
        ([], 'got no image; need --backend_option=image='),
        (['part=all', IMAGE], "got KubernetesOptions.part='all'; need one of run, claims, serve"),
        (['part=serve'], 'got no image'),
        (['part=serve', 'serve_replicas=0', IMAGE], 'serve_replicas=0; need an integer of at least 1'),
        (['part=serve', 'token_secret=a', IMAGE], 'got part=serve and token_secret'),
        (['pod_monitor=prometheus', IMAGE], 'need the label KEY=VALUE'),
        (['part=claims', 'claim=mine'], 'which is there; need one of them'),
    ],
)
def test_wrong_options_are_refused(texts, message):
    with pytest.raises(ValueError, match=message):
        places.read_options(KubernetesOptions, texts)


def test_fewer_collectors_at_most_than_at_least_are_refused():
    with pytest.raises(ValueError, match=r'got max_collectors=64 and --num_collectors=100; need'):
        manifests(num_collectors=100)


@pytest.mark.parametrize(
    ('num_workers', 'learner', 'message'),
    [
        (2, {'accelerators': 8, 'accelerator': 'tpu-v5-lite-podslice'}, 'got --num_workers for a TPU'),
        (
            1,
            {'accelerators': 4, 'accelerator': 'tpu-v5-lite-podslice'},
            'of 8 chips, and --resources=train:accelerators=4',
        ),
        (1, {'accelerators': 8}, 'need a slice of one host'),
        (1, {}, 'need a slice of one host, of at most 8 chips'),
    ],
)
def test_slices_that_no_learner_has_are_refused(num_workers, learner, message):
    with pytest.raises(ValueError, match=message):
        manifests(TPU, num_workers=num_workers, resources={'train': Resources(**learner)})


def test_a_launch_renders_and_does_not_submit(tmp_path):
    flags = ['--root_dir=/runs/a', '--gin_file=dqn_cartpole', '--backend=kubernetes', '--render']
    flags += ['--backend_option=namespace=agents', f'--backend_option={IMAGE}']
    done = command_lines.run('launch', *flags, timeout=60.0)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)['items']
    assert '--gin_file=dqn_cartpole.gin' in container(made, 'train')['args']
    own = tmp_path / 'my run.gin'
    own.write_text("include 'dqn_cartpole.gin'\ninclude 'parts/more.gin'\n")
    more = tmp_path / 'parts' / 'more.gin'
    more.parent.mkdir()
    head = 'from __gin__ import dynamic_registration\nfrom tflearn.learner import stop_conditions\n'
    more.write_text(f'{head}stop_conditions.StopConditions.num_train_steps = 10\n')
    done = command_lines.run('launch', *flags, f'--gin_file={own}', timeout=60.0)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)['items']
    assert '--gin_file=/etc/tflearn/gin/my run.gin' in container(made, 'train')['args']
    (volume,) = [each for each in templates(made)['train']['spec']['volumes'] if each['name'] == 'gin']
    data = by_kind(made, 'ConfigMap', '-gin')['data']
    assert {item['path']: data[item['key']] for item in volume['configMap']['items']} == {
        'my run.gin': own.read_text(),
        'parts/more.gin': more.read_text(),
    }
