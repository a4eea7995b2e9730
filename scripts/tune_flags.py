"""The flags of tflearn-tune."""

from absl import flags


def define(switches: flags.FlagValues) -> None:
    """Defines them among the given ones."""
    flags.DEFINE_string('gin_file', None, 'A path, or the name of a packaged gin file. Required.', flag_values=switches)
    flags.DEFINE_string('root_dir', None, 'The folder of the search. Required.', flag_values=switches)
    help = 'FILE.toml, FILE.py, or the name of a packaged space; by default that of the algorithm.'
    flags.DEFINE_string('space', None, help, flag_values=switches)
    flags.DEFINE_integer('trials', 30, 'How many trials in all.', 1, flag_values=switches)
    flags.DEFINE_integer('parallel', 1, 'How many runs at the same time.', 1, flag_values=switches)
    flags.DEFINE_integer('seeds', 3, 'Fresh seeds of each finalist and of best.gin; 0: none.', 0, flag_values=switches)
    help = 'How many of the best trials run again with fresh seeds, which choose the best settings.'
    flags.DEFINE_integer('finalists', 3, help, 1, flag_values=switches)
    flags.DEFINE_multi_string('gin_bindings', [], 'Gin statements, as those of tflearn-launch.', flag_values=switches)
    flags.DEFINE_string('metric', 'return', 'The metric of the evaluations that is searched for.', flag_values=switches)
    flags.DEFINE_bool('lower_is_better', False, 'Whether a smaller value is better.', flag_values=switches)
    help = 'processes: as tflearn-launch; synchronous: each run in one process.'
    flags.DEFINE_enum('mode', 'processes', ['processes', 'synchronous'], help, flag_values=switches)
    help = "Optuna's sampler, which chooses the hyperparameters."
    flags.DEFINE_enum('sampler', 'tpe', ['tpe', 'random'], help, flag_values=switches)
    help = "Optuna's pruner, which ends trials that fall behind."
    flags.DEFINE_enum('pruner', 'median', ['median', 'hyperband', 'none'], help, flag_values=switches)
