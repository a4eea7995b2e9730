"""Manifests are valid by the published schemas and the pod security standard, and the template is used up."""

import importlib.util
import json
import pathlib
import re

import pytest
import yaml

from tests.extensions.clusters.rendered import ALONE, SERVE, SMALL, TPU, gang, manifests, templates
from tflearn.extensions.clusters import kubernetes, places
from tflearn.extensions.clusters.kubernetes import KubernetesOptions
from tflearn.launch.topology import Resources

CASES = {
    'full': lambda: manifests()[0],
    'shards': lambda: manifests(addresses=ALONE)[0],
    'tpu': lambda: manifests(TPU, num_workers=1, resources={'train': Resources(accelerators=8, accelerator='v5')})[0],
    'small': lambda: manifests(SMALL, num_workers=1, resources={}, num_collectors=1)[0],
    'serve': lambda: manifests(SERVE)[0],
    'claims': lambda: manifests(places.read_options(KubernetesOptions, ['part=claims']))[0],
    'own gin file': lambda: manifests(SMALL, gin_files={'a/ö.gin': 'x = 1'})[0],
}
CUSTOM = ('JobSet', 'LocalQueue', 'PodMonitor')


@pytest.mark.parametrize('case', CASES)
def test_core_kinds_are_valid_by_the_published_schemas(case):
    """The schemas are those of kubernetes-validate, which is in the lock."""
    if not importlib.util.find_spec('kubernetes_validate'):
        pytest.skip('no kubernetes-validate: scripts/test installs it')
    import kubernetes_validate

    jobs = [
        {'apiVersion': 'batch/v1', 'kind': 'Job', 'metadata': {'name': name}, 'spec': spec}
        for name, spec in gang(CASES[case]()).items()
    ]
    for manifest in [*CASES[case](), *jobs]:
        if manifest['kind'] not in CUSTOM:
            kubernetes_validate.validate(manifest, '1.35', strict=True)
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate({**manifest, 'specs': {}}, '1.35', strict=True)


CAPABILITIES = {'drop': ['ALL']}
VOLUMES = {'configMap', 'csi', 'downwardAPI', 'emptyDir', 'ephemeral', 'persistentVolumeClaim', 'projected', 'secret'}


@pytest.mark.parametrize('case', CASES)
def test_pods_meet_the_restricted_security_standard(case):
    """Each control of the standard's `baseline` and `restricted` levels that applies to Linux pods."""
    for template in templates(CASES[case]()).values():
        pod = template['spec']
        assert not {'hostNetwork', 'hostPID', 'hostIPC'} & pod.keys()
        assert all(volume.keys() - {'name'} <= VOLUMES for volume in pod['volumes'])
        own = pod['securityContext']
        assert own['runAsNonRoot'] is True and own['runAsUser'] != 0 and own['runAsGroup'] != 0
        assert own['seccompProfile']['type'] in ('RuntimeDefault', 'Localhost')
        assert not {'seLinuxOptions', 'sysctls', 'windowsOptions', 'appArmorProfile'} & own.keys()
        for each in [*pod['containers'], *pod.get('initContainers', [])]:
            assert each['securityContext'] == {
                'allowPrivilegeEscalation': False,
                'readOnlyRootFilesystem': True,
                'capabilities': CAPABILITIES,
            }
            assert not any('hostPort' in port for port in each.get('ports', []))
            probes = [each.get(name, {}) for name in ('livenessProbe', 'readinessProbe', 'startupProbe')]
            assert not any('host' in probe.get(kind, {}) for probe in probes for kind in ('httpGet', 'tcpSocket'))


@pytest.mark.parametrize('case', ['full', 'shards', 'tpu', 'small', 'serve'])
def test_custom_kinds_are_valid_by_their_definitions(case):
    """Their schemas are in custom_kinds.yaml."""
    jsonschema = pytest.importorskip('jsonschema', reason='it comes with kubernetes-validate: scripts/test installs it')
    kinds = yaml.safe_load_all(pathlib.Path(__file__).with_name('custom_kinds.yaml').read_text())
    schemas = {(kind['apiVersion'], kind['kind']): kind['schema'] for kind in kinds}
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


def test_the_template_can_be_read_and_has_nothing_unused():
    """Each part is filled in somewhere; a word that stands for nothing known would be an error."""
    text = (pathlib.Path(kubernetes.__file__).with_name('kubernetes.yaml')).read_text()
    rendered = json.dumps([made() for made in CASES.values()])
    assert not re.search(r'<\w+>', rendered), 'all words are filled in'
    code = pathlib.Path(kubernetes.__file__).read_text()
    for part in [*yaml.safe_load(text), *yaml.safe_load(text)['parts']]:
        assert f"'{part}'" in code
