"""Manifests: complete, consistent with each other and with the run's settings, and valid by the published schemas."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tflearn.launch.topology import Resources, Weights, address_of, replay_servers, run_topology
from tflearn.run_dir import RunDir
from tflearn.schedulers import kubernetes, options
from tflearn.schedulers.pods import KubernetesOptions

RESOURCES = {
    'train': Resources(cores=8, memory_gb=16.0, accelerators=4, accelerator='nvidia-l4'),
    'collect': Resources(cores=2, memory_gb=1.5, custom={'example.com/simulator': 1}),
}
FULL = KubernetesOptions(
    image='registry.example.com/tflearn:1',
    namespace='agents',
    queue='learners',
    cluster_queue='gpus',
    storage_class='fast',
    max_collectors=64,
    serve_replicas=2,
)
TPU = KubernetesOptions(tpu_topology='2x4', serve_replicas=0)


def manifests(its_options=FULL, num_workers=2, resources=RESOURCES, num_collectors=16, name='My_Run', **more):
    servers = replay_servers(more.get('num_replay_servers', 1))
    flags = [f'--root_dir=/runs/{name}', f'--replay_address={",".join(map(address_of, servers))}']
    counts = {'num_collectors': num_collectors, 'num_workers': num_workers, **more}
    topology = run_topology(package='scripts', flags=flags, resources=resources, **counts)
    made = kubernetes.manifests(topology, RunDir(f'/runs/{name}'), its_options)
    return json.loads(json.dumps(made)), topology


def by_kind(made, kind, end=''):
    (found,) = [item for item in made if item['kind'] == kind and item['metadata']['name'].endswith(end)]
    return found


def templates(made):
    """The templates of pods, by the job's kind."""
    found = []
    for item in made:
        spec = item['spec']
        for job in spec.get('replicatedJobs', []):
            found.append(job['template']['spec']['template'])
        found += [spec['template']] if 'template' in spec else []
    return {template['metadata']['labels']['tflearn/job']: template for template in found}


def container(made, kind):
    first, *others = templates(made)[kind]['spec']['containers']
    apart = kind != 'replay_server' or 'metrics' in templates(made)
    assert [other['name'] for other in others] == ([] if apart else ['metrics'])
    return first


def test_a_run_has_all_its_objects():
    made, _ = manifests()
    assert [item['kind'] for item in made] == [
        *('PersistentVolumeClaim', 'Service', 'StatefulSet', 'LocalQueue', 'JobSet', 'Deployment'),
        *('HorizontalPodAutoscaler', 'Job', 'Service', 'Deployment', 'NetworkPolicy', *['PodDisruptionBudget'] * 4),
    ]
    assert {item['metadata']['namespace'] for item in made} == {'agents'}
    keys = [(item['kind'], item['metadata']['name']) for item in made]
    assert len(set(keys)) == len(keys)
    small, _ = manifests(KubernetesOptions(serve_replicas=0), num_workers=1, resources={})
    assert not {'LocalQueue', 'HorizontalPodAutoscaler'} & {item['kind'] for item in small}
    assert sorted(templates(small)) == ['collect', 'evaluate', 'replay_server', 'train']


def test_selectors_find_the_pods_that_they_mean():
    made, _ = manifests()
    pods = templates(made)

    def matched(selector):
        def fits(labels):
            if any(labels.get(key) != value for key, value in selector.get('matchLabels', {}).items()):
                return False
            return all(labels.get(term['key']) in term['values'] for term in selector.get('matchExpressions', []))

        return sorted(kind for kind, template in pods.items() if fits(template['metadata']['labels']))

    for item in made:
        spec = item['spec']
        if item['kind'] in ('StatefulSet', 'Deployment'):
            assert matched(spec['selector']) == [spec['template']['metadata']['labels']['tflearn/job']]
        if item['kind'] == 'Service':
            (kind,) = matched({'matchLabels': spec['selector']})
            ports = [port['name'] for port in container(made, kind)['ports']]
            assert [port['targetPort'] for port in spec['ports']] == ports
    budgets = [item['spec'] for item in made if item['kind'] == 'PodDisruptionBudget']
    assert [matched(spec['selector']) for spec in budgets] == [['replay_server'], ['train'], ['collect'], ['serve']]
    network = by_kind(made, 'NetworkPolicy')['spec']
    assert matched(network['podSelector']) == ['collect', 'evaluate', 'replay_server', 'train']
    *own, metrics = network['ingress']
    who = [(matched(rule['from'][0]['podSelector']), rule['ports'][0]['port']) for rule in own]
    assert who == [(['collect', 'evaluate', 'train'], 8008), (['train'], 2222)]
    assert metrics == {'ports': [{'protocol': 'TCP', 'port': 9100}]}


def test_jobs_find_each_other():
    made, topology = manifests()
    server = by_kind(made, 'StatefulSet')
    service = by_kind(made, 'Service', '-replay')
    assert server['spec']['serviceName'] == service['metadata']['name'] and service['spec']['clusterIP'] == 'None'
    for kind in ('replay_server', 'train', 'evaluate', 'collect'):
        assert f'--replay_address={service["metadata"]["name"]}:8008' in container(made, kind)['args']
        (own,) = [job for job in topology.jobs if job.name in (kind, f'{kind}_0')]
        assert container(made, kind)['command'] == ['tflearn-' + own.kind.replace('_', '-')]
    assert container(made, 'collect')['args'][-1] == '--collector_name=$(POD_NAME)'
    jobset = by_kind(made, 'JobSet')
    job = jobset['spec']['replicatedJobs'][0]['template']['spec']
    assert (job['completions'], job['parallelism'], job['completionMode']) == (2, 2, 'Indexed')
    environment = {item['name']: item for item in container(made, 'train')['env']}
    text = environment['TF_CONFIG']['value'].replace('$(WORKER_INDEX)', '1')
    name, domain = jobset['metadata']['name'], jobset['spec']['network']['subdomain']
    assert json.loads(text) == {
        'cluster': {'worker': [f'{name}-learner-0-{i}.{domain}:2222' for i in range(2)]},
        'task': {'type': 'worker', 'index': 1},
    }
    assert list(environment) == ['WORKER_INDEX', 'TF_CONFIG'], 'a variable that another one uses comes first'
    one, _ = manifests(num_workers=1)
    assert 'env' not in container(one, 'train')


WEIGHTS = Weights(address_of('weights'), (address_of('relay_0'), address_of('relay_1')), ('--run_dir=/runs/a',))


def test_shards_and_relays_are_pods_with_addresses():
    made, _ = manifests(num_replay_servers=3, weights=WEIGHTS)
    run = by_kind(made, 'JobSet')['metadata']['name']
    servers = {item['metadata']['name']: item['spec'] for item in made if item['kind'] == 'StatefulSet'}
    assert {name: spec['replicas'] for name, spec in servers.items()} == {
        f'{run}-replay': 3,
        f'{run}-weights': 1,
        f'{run}-relay': 2,
    }
    replay = ','.join(f'{run}-replay-{i}.{run}-replay:8008' for i in range(3))
    for kind in ('replay_server', 'train', 'collect'):
        assert f'--replay_address={replay}' in container(made, kind)['args']
    assert container(made, 'replay_server')['args'][-1] == '--shard=$(ORDINAL)'
    assert container(made, 'replay_server')['env'][0]['valueFrom']['fieldRef']['fieldPath'].endswith("pod-index']")
    mounts = [mount['name'] for mount in container(made, 'replay_server')['volumeMounts']]
    assert mounts == ['run'], 'each compares its checkpoint with those of the others'
    assert f'--weights_address={run}-weights:8010' in container(made, 'train')['args']
    relays = ','.join(f'{run}-relay-{i}.{run}-relay:8010' for i in range(2))
    assert f'--weights_address={relays}' in container(made, 'collect')['args']
    assert container(made, 'relay')['args'] == [
        *('--listen=0.0.0.0:8010', '--run_dir=/runs/a', f'--upstream={run}-weights:8010', '--name=relay_$(ORDINAL)')
    ]
    assert container(made, 'weights')['command'] == ['tflearn-weights']
    assert by_kind(made, 'Deployment', '-metrics')['spec']['replicas'] == 1, 'numbers are counted once'
    for item in made:
        if item['kind'] == 'StatefulSet':
            (service,) = [each for each in made if each['kind'] == 'Service' and each['metadata'] == item['metadata']]
            assert service['spec']['clusterIP'] == 'None' and service['spec']['selector'] in (
                item['spec']['selector']['matchLabels'],
            )


def test_resources_queues_and_nodes():
    made, _ = manifests()
    assert container(made, 'train')['resources'] == {
        'requests': {'cpu': '8', 'memory': '16000M', 'nvidia.com/gpu': '4'},
        'limits': {'memory': '16000M', 'nvidia.com/gpu': '4'},
    }
    assert container(made, 'collect')['resources']['limits'] == {'memory': '1500M', 'example.com/simulator': '1'}
    assert templates(made)['train']['spec']['nodeSelector'] == {'cloud.google.com/gke-accelerator': 'nvidia-l4'}
    jobset = by_kind(made, 'JobSet')
    assert jobset['metadata']['labels']['kueue.x-k8s.io/queue-name'] == by_kind(made, 'LocalQueue')['metadata']['name']
    assert jobset['spec']['suspend']
    scaler, deployment = by_kind(made, 'HorizontalPodAutoscaler')['spec'], by_kind(made, 'Deployment', '-collect')
    assert scaler['scaleTargetRef']['name'] == deployment['metadata']['name']
    assert (scaler['minReplicas'], scaler['maxReplicas']) == (16, 64) and 'replicas' not in deployment['spec']
    metric = scaler['metrics'][0]['external']['metric']
    sidecar = templates(made)['replay_server']['spec']['containers'][1]
    assert sidecar['command'] == ['tflearn-run-metrics']
    assert f'--run={metric["selector"]["matchLabels"]["run"]}' in sidecar['args']
    tpu, _ = manifests(TPU, resources={'train': Resources(accelerators=4, accelerator='tpu-v5-lite-podslice')})
    assert container(tpu, 'train')['resources']['limits'] == {'google.com/tpu': '4'}
    assert templates(tpu)['train']['spec']['nodeSelector'] == {
        'cloud.google.com/gke-tpu-accelerator': 'tpu-v5-lite-podslice',
        'cloud.google.com/gke-tpu-topology': '2x4',
    }
    assert 'exclusive-topology' in str(by_kind(tpu, 'JobSet')['metadata']['annotations'])


def test_pods_have_time_to_stop_volumes_and_no_rights():
    made, topology = manifests()
    for template in templates(made).values():
        pod = template['spec']
        assert pod['terminationGracePeriodSeconds'] > topology.stop_timeout_secs
        assert pod['securityContext']['runAsNonRoot']
        volumes = {volume['name'] for volume in pod['volumes']}
        claims = by_kind(made, 'StatefulSet')['spec']['volumeClaimTemplates']
        volumes |= {claim['metadata']['name'] for claim in claims}
        for each in pod['containers']:
            assert {mount['name'] for mount in each['volumeMounts']} <= volumes
    mounts = [mount['mountPath'] for mount in container(made, 'replay_server')['volumeMounts']]
    assert mounts == ['/runs/My_Run', '/runs/My_Run/replay']


@pytest.mark.parametrize(
    ('state', 'age_secs', 'alive'),
    [('running', 0, True), ('running', 900, False), ('waiting', 900, True), (None, 0, True)],
)
def test_a_job_is_alive_while_it_reports(tmp_path, state, age_secs, alive):
    topology = run_topology(package='scripts', flags=[], num_collectors=1, num_replay_servers=3, weights=WEIGHTS)
    topology = type(topology)(topology.jobs, silent_timeout_secs=300.0)
    made = kubernetes.manifests(topology, RunDir(tmp_path), FULL)
    for kind, variable, name in (
        ('collect', 'POD_NAME=pod-7', 'pod-7'),
        ('replay_server', 'ORDINAL=0', 'replay_server'),
        ('replay_server', 'ORDINAL=2', 'replay_server_2'),
        ('relay', 'ORDINAL=0', 'relay_0'),
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
    ],
)
def test_wrong_options_are_refused(texts, message):
    with pytest.raises(ValueError, match=message):
        options.read(KubernetesOptions, texts)


def test_fewer_collectors_at_most_than_at_least_are_refused():
    with pytest.raises(ValueError, match=r'got max_collectors=64 and --num_collectors=100; need'):
        manifests(num_collectors=100)


def test_a_launch_renders_and_does_not_submit(tmp_path):
    command = [sys.executable, '-m', 'scripts.launch', '--root_dir=/runs/a', '--gin_file=dqn_cartpole']
    command += ['--backend=kubernetes', '--backend_option=namespace=agents']
    done = subprocess.run([*command, '--render'], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)['items']
    assert '--gin_file=dqn_cartpole' in container(made, 'train')['args']


CASES = {
    'full': lambda: manifests()[0],
    'shards': lambda: manifests(num_replay_servers=4, weights=WEIGHTS)[0],
    'tpu': lambda: manifests(TPU, resources={'train': Resources(accelerators=4, accelerator='v5')})[0],
    'small': lambda: manifests(KubernetesOptions(), num_workers=1, resources={}, num_collectors=1)[0],
}
CUSTOM = ('JobSet', 'LocalQueue')


@pytest.mark.parametrize('case', CASES)
def test_core_kinds_are_valid_by_the_published_schemas(case):
    """The schemas are those of kubernetes-validate, which is in the lock."""
    if not importlib.util.find_spec('kubernetes_validate'):
        pytest.skip('no kubernetes-validate: scripts/test installs it')
    import kubernetes_validate

    for manifest in CASES[case]():
        if manifest['kind'] not in CUSTOM:
            kubernetes_validate.validate(manifest, '1.35', strict=True)
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate({**manifest, 'specs': {}}, '1.35', strict=True)


@pytest.mark.parametrize('case', CASES)
def test_custom_kinds_are_valid_by_their_definitions(case):
    """Needs the folder TFLEARN_TEST_CRDS with the CustomResourceDefinitions of JobSet and of Kueue, as YAML."""
    folder = os.environ.get('TFLEARN_TEST_CRDS')
    if not folder:
        pytest.skip('no TFLEARN_TEST_CRDS: a folder with the CRDs of JobSet and of Kueue in YAML')
    import jsonschema
    import yaml

    definitions = [
        definition
        for path in pathlib.Path(folder).glob('*.yaml')
        for definition in yaml.safe_load_all(path.read_text())
        if definition and definition['kind'] == 'CustomResourceDefinition'
    ]
    schemas = {
        (f'{item["spec"]["group"]}/{version["name"]}', item['spec']['names']['kind']): version['schema'][
            'openAPIV3Schema'
        ]
        for item in definitions
        for version in item['spec']['versions']
    }
    custom = [manifest for manifest in CASES[case]() if manifest['kind'] in CUSTOM]
    assert custom
    for manifest in custom:
        schema = _closed(schemas[manifest['apiVersion'], manifest['kind']])
        jsonschema.Draft202012Validator(schema).validate(manifest)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema).validate({**manifest, 'spec': {**manifest['spec'], 'unknown': 1}})


def _closed(schema):
    """Returns the schema without room for unknown fields, as `kubectl apply --validate=strict` reads it."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    named = isinstance(closed.get('properties'), dict) and closed.get('type') == 'object'
    if named and not closed.get('x-kubernetes-preserve-unknown-fields'):
        closed.setdefault('additionalProperties', False)
    return closed
