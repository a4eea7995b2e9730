"""Names in gin files of version 0.1, and the names that replaced them. `tflearn-migrate` rewrites them."""

from collections.abc import Iterable, Iterator

from tflearn.config import moved_settings
from tflearn.config.moved_settings import Replacement, Setting
from tflearn.config.reader import FLAG, Binding, Import, Reference, Statements, leaves
from tflearn.errors import UserValueError

_COLLECT_OPTIONS = 'tflearn.jobs.collect_settings.CollectOptions'
VERSIONS_AHEAD = 'tflearn.experience.Queue.versions_ahead'

# By package: modules, and where they are now in tflearn.
_MODULES = {
    'tflearn': {'specs': 'types', 'steps': 'train_step', 'variables': 'weights'},
    'tflearn.agents': {
        'gradient_statistics': 'optimization.optimizers',
        'networks': 'networks.networks',
        **{name: f'optimization.{name}' for name in ('impala_loss', 'optimizers', 'ppo_loss', 'schedules', 'vtrace')},
    },
    'tflearn.environments': {
        'copies': 'environments.sync_vector_env',
        'refusals': 'environments.registry',
        'wrapper': 'environments.wrappers',
    },
    'tflearn.jobs': {
        'in_step': 'jobs.synchronous',
        'in_step_session': 'jobs.synchronous',
        'recorded_data': 'jobs.initial_agent',
        'run_end': 'jobs.run_outputs',
    },
    'tflearn.learner': {
        'checkpoint_files': 'checkpoints.files',
        'checkpoints': 'checkpoints.checkpoints',
        'consistency': 'distribute.replica_check',
        'elements': 'learner.batch_structure',
        'initial_load': 'checkpoints.warm_start',
        'input_checks': 'learner.batch_structure',
        'interval_figures': 'learner.metrics',
        'iterations': 'learner.minibatches',
        'limits': 'learner.stop_conditions',
        'on_policy_data': 'tf_agents_compat.ppo_learner',
        'precision': 'distribute.precision',
        'process_figures': 'learner.metrics',
        'random_state': 'checkpoints.checkpoints',
        'snapshots': 'checkpoints.snapshots',
        'step_figures': 'learner.metrics',
        'strategies': 'distribute.strategies',
        'tf_agents_checkpointer': 'tf_agents_compat.checkpointer',
        'tf_agents_loop': 'tf_agents_compat.loop',
        'tf_agents_plain_learner': 'tf_agents_compat.plain_learner',
        'tf_agents_ppo_learner': 'tf_agents_compat.ppo_learner',
        'tf_config': 'distribute.strategies',
        'watchdog': 'distribute.watchdog',
        'workers': 'distribute.workers',
    },
    'tflearn.policies': {
        **{
            name: f'serving.{name}' for name in ('batching', 'client', 'prediction_service', 'served_version', 'server')
        },
        'calls': 'serving.request_queue',
        'model_holder': 'serving.models',
        'saved_policy': 'policies.exporter',
        'served_policy': 'serving.remote_policy',
        'serving_config': 'serving.models',
        'serving_metrics': 'serving.metrics',
        'serving_protos': 'serving.protos',
        'tensor_protos': 'serving.tensor_protos',
    },
    'tflearn.replay': {
        'prioritized': 'sampling.sampler',
        'reuse_plan': 'sampling.queue_source',
        'shared_array': 'sampling.ring_columns',
        **{
            name: f'sampling.{name}'
            for name in (
                *('local', 'mirror', 'priorities', 'queue_source', 'reader', 'ring_buffer'),
                *('ring_columns', 'sampler'),
            )
        },
    },
}
# By full name: modules, functions, arguments.
MOVED = {
    **{f'{package}.{name}': f'tflearn.{new}' for package, news in _MODULES.items() for name, new in news.items()},
    'tflearn.agents.networks.Pixels': 'tflearn.networks.encoder.Pixels',
    'tflearn.jobs.in_step.in_step': 'tflearn.jobs.synchronous.synchronous',
    'tflearn.learner.limits.Limits': 'tflearn.learner.stop_conditions.StopConditions',
    'tflearn.learner.summaries.SummaryOptions.figures': 'tflearn.learner.summaries.SummaryOptions.metrics',
    f'{_COLLECT_OPTIONS}.max_sequences_per_version': VERSIONS_AHEAD,
}
# These meant something without max_episodes_per_version as long as there was max_sequences_per_version.
_WITH_SEQUENCES = {
    f'{_COLLECT_OPTIONS}.{name}': VERSIONS_AHEAD for name in ('versions_ahead', 'collect_at_least_every_secs')
}


def new_name(old: str) -> str | None:
    """Returns the full name that replaced the full name `old` or what it begins with; None if nothing did."""
    parts = old.split('.')
    for end in range(len(parts), 0, -1):
        if new := MOVED.get('.'.join(parts[:end])):
            return '.'.join([new, *parts[end:]])
    return None


def full_name(selector: str, imports: Iterable[Import]) -> str:
    """Returns the full name of what `selector` means where these imports hold; the selector if it needs none."""
    first, _, rest = selector.partition('.')
    symbols = [item.symbol for item in imports if item.name == first]
    return f'{symbols[-1]}.{rest}' if symbols and rest else selector


def _full_name(binding: Binding) -> str:
    """Returns the full name of a binding's argument. On the command line a function's name may be enough."""
    modules = {item.module for item in binding.imports} if binding.place == FLAG else ()
    for owner in moved_settings.OWNERS:
        if owner.rpartition('.')[0] in modules and f'.{owner}'.endswith(f'.{binding.selector}'):
            return f'{owner}.{binding.parameter}'
    return full_name(f'{binding.selector}.{binding.parameter}', binding.imports)


def settings(statements: Statements) -> list[Setting]:
    """Returns the statements' bindings by full names; those of modules that moved by their new names."""
    names = map(_full_name, statements.bindings)
    return [Setting(new_name(name) or name, item.value) for item, name in zip(statements.bindings, names, strict=True)]


def replaced_bindings(statements: Statements) -> Iterator[tuple[Binding, Replacement]]:
    """Yields the bindings of arguments that moved or were replaced, each with what took its place."""
    names = list(map(_full_name, statements.bindings))
    by_sequences = not any(name == f'{_COLLECT_OPTIONS}.max_episodes_per_version' for name in names)
    run = settings(statements)
    for binding, name, setting in zip(statements.bindings, names, run, strict=True):
        new = new_name(name) or (_WITH_SEQUENCES.get(name) if by_sequences else None)
        replacement = moved_settings.replacement(setting, run)
        if new and (not replacement or new == VERSIONS_AHEAD):
            replacement = Replacement([Setting(new, binding.value)])
        if replacement and binding.parameter:
            yield binding, replacement


def old_names(statements: Statements) -> Iterator[tuple[str, str, str]]:
    """Yields the names of version 0.1 as they are written, each with its place and what to write instead."""
    for item in statements.imports:
        if new := new_name(item.module):
            yield f'the import of {item.module}', item.place, f'{new}, which replaced it'
    for binding in statements.bindings:
        for leaf in leaves(binding.value):
            if isinstance(leaf, Reference) and (new := new_name(full_name(leaf.selector, binding.imports))):
                yield repr(leaf), binding.place, f'{new}, which replaced it'
    for binding, replacement in replaced_bindings(statements):
        yield binding.written, binding.place, replacement.text


def check(statements: Statements) -> None:
    """Checks that no name is one of version 0.1.

    Raises:
      ValueError: naming the first one, its place and the new name.
    """
    for written, place, new in old_names(statements):
        raise UserValueError(
            f'got {written} in {place}, a name of version 0.1; need {new}; run tflearn-migrate '
            f'{place.rpartition(":")[0] or "FILE.gin"}'
        )
