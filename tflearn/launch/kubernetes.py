"""Kubernetes: the manifests of a run, as one JSON list that `kubectl apply -f` takes. Nothing is submitted.

The learner is a JobSet: when a worker dies, all are started again. Replay servers, the weights server and its relays
are StatefulSets, whose pods have addresses. Collectors are a Job, which ends with the run; or a Deployment with an
autoscaler if they are to be more when the learner waits for data. The claim of the run directory is in a list of its
own, so that deleting a run's objects keeps its checkpoints and policies.
"""

import json
from typing import Any, NoReturn

from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import RunDir
from tflearn.launch.pods import (
    METRICS_PORT,
    PORTS,
    SERVE_PORT,
    WORKER_PORT,
    KubernetesOptions,
    Manifest,
    Pods,
    port_name,
)
from tflearn.launch.restarts import MAX_RESTARTS
from tflearn.launch.topology import Resources, Topology

_USER_ERROR_EXIT_CODE = 2
_KEPT_SECS = 7 * 24 * 3600  # what has ended can be looked at for so long
_TARGET_DATA_WAIT = '100m'  # a tenth of the time


def render(topology: Topology, run_dir: RunDir, package: str, options: KubernetesOptions) -> str:
    """Returns the manifests as JSON, which is YAML too.

    Args:
      topology: the run's jobs.
      run_dir: the run's directory in the containers, where the volume is mounted.
      package: not used: the image has console commands.
      options: what the jobs' resources do not say.
    """
    del package
    return json.dumps({'apiVersion': 'v1', 'kind': 'List', 'items': manifests(topology, run_dir, options)}, indent=2)


def submit(topology: Topology, run_dir: RunDir, package: str, options: KubernetesOptions) -> NoReturn:
    """Submits nothing. Raises ValueError, which says what to do."""
    raise UserValueError(
        'got --backend=kubernetes without --render; need kubectl to submit it: '
        'tflearn-launch ... --render | kubectl apply -f -'
    )


def manifests(topology: Topology, run_dir: RunDir, options: KubernetesOptions) -> list[Manifest]:
    """Returns all objects of a run, in the order in which they are made."""
    run = _Run(topology, run_dir, options)
    if options.part == 'claims':
        made = [run.claim()]
    else:
        made = [*run.pods.config_map(), *run.servers(), *run.learner(), *run.collectors(), run.evaluate()]
        made += [*run.serve(), run.network(), *run.disruption_budgets()]
    for manifest in made:
        manifest['metadata'] = {
            'namespace': options.namespace,
            'labels': run.pods.labels('run'),
            **manifest['metadata'],
        }
    return made


class _Run:
    """The objects of one run."""

    def __init__(self, topology: Topology, run_dir: RunDir, options: KubernetesOptions):
        self._topology, self._run_dir, self._options = topology, run_dir, options
        self.pods = Pods(topology, run_dir, options)
        self._name = self.pods.name

    def _labels(self, kind: str) -> Manifest:
        return {'matchLabels': self.pods.labels(kind)}

    def claim(self) -> Manifest:
        """Returns the claim of the volume that all jobs share."""
        options = self._options.volume
        spec: Manifest = {
            'accessModes': ['ReadWriteMany'],
            'resources': {'requests': {'storage': f'{options.storage_gb}G'}},
            **({'storageClassName': options.storage_class} if options.storage_class else {}),
        }
        return _manifest('v1', 'PersistentVolumeClaim', self.pods.claim, spec)

    def servers(self) -> list[Manifest]:
        """Returns the replay servers, the weights server and its relays, with their addresses."""
        kinds = [kind for kind in PORTS if self._topology.group(kind)]
        return [manifest for kind in kinds for manifest in self._server(kind)] + self._metrics()

    def _metrics(self) -> list[Manifest]:
        """Returns what Prometheus asks, which a single replay server has beside it: of several each would be asked."""
        if len(self._topology.group('replay_server')) == 1:
            return []
        spec: Manifest = {'replicas': 1, 'selector': self._labels('metrics'), 'template': self.pods.metrics()}
        return [_manifest('apps/v1', 'Deployment', f'{self._name}-metrics', spec)]

    def _server(self, kind: str) -> list[Manifest]:
        jobs, name, port = self._topology.group(kind), self.pods.services[kind], port_name(kind)
        service: Manifest = {
            'clusterIP': 'None',
            'selector': self.pods.labels(kind),
            'ports': [{'name': port, 'port': PORTS[kind], 'targetPort': port}],
            'publishNotReadyAddresses': True,  # Its pods look for each other before they are ready.
        }
        server: Manifest = {
            'serviceName': name,
            'replicas': len(jobs),
            'podManagementPolicy': 'Parallel',  # None waits for another one.
            'selector': self._labels(kind),
            'template': self.pods.of_job(jobs[0]),
        }
        return [_manifest('v1', 'Service', name, service), _manifest('apps/v1', 'StatefulSet', name, server)]

    def learner(self) -> list[Manifest]:
        """Returns the learner, and the queue that it waits in."""
        (job,) = self._topology.group('train')
        one_job: Manifest = {
            'parallelism': job.workers,
            'completions': job.workers,
            'completionMode': 'Indexed',
            'backoffLimit': 0,  # JobSet starts all workers again.
            'podFailurePolicy': _user_errors_fail(),
            'template': self.pods.of_job(job, restart='Never'),
        }
        spec: Manifest = {
            'network': {'enableDNSHostnames': True, 'subdomain': self._name},
            'failurePolicy': {
                'maxRestarts': MAX_RESTARTS,
                'rules': [{'name': 'userError', 'action': 'FailJobSet', 'onJobFailureReasons': ['PodFailurePolicy']}],
            },
            'replicatedJobs': [{'name': 'learner', 'replicas': 1, 'template': {'spec': one_job}}],
            'ttlSecondsAfterFinished': _KEPT_SECS,
        }
        made = _manifest('jobset.x-k8s.io/v1alpha2', 'JobSet', self._name, spec)
        metadata = made['metadata']
        if self._options.pods.tpu_topology:
            # All pods on one slice, and nothing else on it.
            metadata['annotations'] = {'alpha.jobset.sigs.k8s.io/exclusive-topology': 'cloud.google.com/gke-nodepool'}
        if not self._options.queueing.queue:
            return [made]
        metadata['labels'] = {**self.pods.labels('run'), 'kueue.x-k8s.io/queue-name': self._options.queueing.queue}
        spec['suspend'] = True  # Kueue starts it.
        if not self._options.queueing.cluster_queue:
            return [made]
        queue: Manifest = {'clusterQueue': self._options.queueing.cluster_queue}
        return [_manifest('kueue.x-k8s.io/v1beta1', 'LocalQueue', self._options.queueing.queue, queue), made]

    def collectors(self) -> list[Manifest]:
        """Returns the collectors, and what starts more of them while the learner waits for data."""
        jobs, name = self._topology.group('collect'), f'{self._name}-collect'
        if not self._options.max_collectors:
            # Each may be started again as often as the local launcher does it; an eviction does not count.
            evicted = {'action': 'Ignore', 'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}]}
            rules = [*_user_errors_fail()['rules'], evicted]
            one_job: Manifest = {
                'parallelism': len(jobs),
                'completions': len(jobs),
                'completionMode': 'Indexed',
                'backoffLimitPerIndex': MAX_RESTARTS,
                'podFailurePolicy': {'rules': rules},
                'ttlSecondsAfterFinished': _KEPT_SECS,
                'template': self.pods.of_job(jobs[0], restart='Never'),
            }
            return [_manifest('batch/v1', 'Job', name, one_job)]
        # Without `replicas`, which are the autoscaler's; applying the manifests again must not set them back.
        spec: Manifest = {'selector': self._labels('collect'), 'template': self.pods.of_job(jobs[0])}
        deployment = _manifest('apps/v1', 'Deployment', name, spec)
        if self._options.max_collectors < len(jobs):
            raise UserValueError(
                f'got max_collectors={self._options.max_collectors} and --num_collectors={len(jobs)}; need at least as '
                'many; raise max_collectors'
            )
        metric = {'name': self._options.metric, 'selector': {'matchLabels': {'run': self._name}}}
        scaler: Manifest = {
            'scaleTargetRef': {'apiVersion': 'apps/v1', 'kind': 'Deployment', 'name': name},
            'minReplicas': len(jobs),
            'maxReplicas': self._options.max_collectors,
            'metrics': [
                {
                    'type': 'External',
                    'external': {'metric': metric, 'target': {'type': 'Value', 'value': _TARGET_DATA_WAIT}},
                }
            ],
            # A restart of the learner is no reason to stop collectors.
            'behavior': {'scaleDown': {'stabilizationWindowSeconds': 600}},
        }
        return [deployment, _manifest('autoscaling/v2', 'HorizontalPodAutoscaler', name, scaler)]

    def evaluate(self) -> Manifest:
        """Returns the evaluation, which writes DONE at the end of the run."""
        (job,) = self._topology.group('evaluate')
        spec: Manifest = {
            'backoffLimit': MAX_RESTARTS,
            'podFailurePolicy': _user_errors_fail(),
            'ttlSecondsAfterFinished': _KEPT_SECS,
            'template': self.pods.of_job(job, restart='Never'),
        }
        return _manifest('batch/v1', 'Job', f'{self._name}-evaluate', spec)

    def serve(self) -> list[Manifest]:
        """Returns servers of the run's newest policies, and their address."""
        if not self._options.serve_replicas:
            return []
        name = f'{self._name}-serve'
        words = ['tflearn-serve', f'--root_dir={self._run_dir.root}', '--host=0.0.0.0', f'--port={SERVE_PORT}']
        words.append(f'--metrics_port={METRICS_PORT}')
        # It is ready with the first policy, which takes as long as the queue is, and alive before.
        alive: Manifest = {'httpGet': {'path': '/metrics', 'port': 'metrics'}, 'periodSeconds': 10}
        container: Manifest = {
            'ports': [
                {'name': 'grpc', 'containerPort': SERVE_PORT},
                {'name': 'metrics', 'containerPort': METRICS_PORT},
            ],
            'readinessProbe': {'grpc': {'port': SERVE_PORT}, 'periodSeconds': 10},
            'livenessProbe': {**alive, 'timeoutSeconds': 10, 'failureThreshold': 6},
            'startupProbe': {**alive, 'failureThreshold': 60},
        }
        spec: Manifest = {
            'replicas': self._options.serve_replicas,
            'selector': self._labels('serve'),
            'template': self.pods.template('serve', words, Resources(), container),
        }
        service: Manifest = {
            'selector': self.pods.labels('serve'),
            'ports': [{'name': 'grpc', 'port': SERVE_PORT, 'targetPort': 'grpc', 'appProtocol': 'grpc'}],
        }
        return [_manifest('v1', 'Service', name, service), _manifest('apps/v1', 'Deployment', name, spec)]

    def network(self) -> Manifest:
        """Returns who may connect: the run's jobs to its servers, workers to each other, all to metrics."""

        def allow(kind: str, *clients: str) -> list[Manifest]:
            there = [client for client in clients if self._topology.group(client)]
            if not self._topology.group(kind):
                return []
            return [{'from': [{'podSelector': self.pods.selector(*there)}], 'ports': [_port(ports[kind])]}]

        ports = {**PORTS, 'train': WORKER_PORT}
        spec: Manifest = {
            'podSelector': self.pods.selector(*dict.fromkeys(job.kind for job in self._topology.jobs)),
            'policyTypes': ['Ingress'],
            'ingress': [
                *allow('replay_server', 'train', 'collect', 'evaluate'),
                *allow('weights', 'train', 'relay', 'collect', 'evaluate', 'replay_server'),
                *allow('relay', 'collect', 'evaluate', 'replay_server'),
                *allow('train', 'train'),
                {'ports': [_port(METRICS_PORT)]},
            ],
        }
        return _manifest('networking.k8s.io/v1', 'NetworkPolicy', self._name, spec)

    def disruption_budgets(self) -> list[Manifest]:
        """Returns how many pods of each kind the cluster may take away at a time."""
        # A drain waits for the replay server, which somebody has to stop. Pods of Jobs have no budget of this kind:
        # the learner goes on from its checkpoint elsewhere.
        kept: dict[str, Any] = {'replay_server': 0}
        kept |= {'collect': '25%'} if self._options.max_collectors else {}
        kept |= {'serve': 1} if self._options.serve_replicas else {}
        return [
            _manifest(
                'policy/v1',
                'PodDisruptionBudget',
                f'{self._name}-{kind.replace("_", "-")}',
                {'maxUnavailable': most, 'selector': self._labels(kind)},
            )
            for kind, most in kept.items()
        ]


def _manifest(version: str, kind: str, name: str, spec: Manifest) -> Manifest:
    return {'apiVersion': version, 'kind': kind, 'metadata': {'name': name}, 'spec': spec}


def _port(number: int) -> Manifest:
    return {'protocol': 'TCP', 'port': number}


def _user_errors_fail() -> Manifest:
    """Returns the rule that an error which the user has to correct is not tried again."""
    codes = {'operator': 'In', 'values': [_USER_ERROR_EXIT_CODE]}
    return {'rules': [{'action': 'FailJob', 'onExitCodes': codes}]}
