"""The verbs of this extension: several runs, their comparison, and what one looks at in runs."""

import json
import pathlib
import sys

from absl import flags

from tflearn.core.verbs import Verb, values_of
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, local_path, opened_run_dir, read_json

_SEARCH = ('gin_file', 'space', 'parallel', 'gin_bindings', 'mode', 'metric', 'lower_is_better')
_STATES = {True: 'LOOK', False: 'ok', None: 'unknown'}


def _seeds(switches: flags.FlagValues) -> int:
    """Runs a gin file once for each seed, and compares the runs: tflearn seeds --gin_file=FILE --root_dir=DIR.

    The run of seed 3 is in ROOT_DIR/seed_3. The same command continues what was stopped, and starts
    failed seeds again. At the end there are comparison.md, comparison.png and comparison.csv in
    ROOT_DIR; tflearn compare shows several such folders beside each other.
    """
    from tflearn.extensions.experiments import runs

    root = pathlib.Path(switches.root_dir)
    numbers = range(switches.first_seed, switches.first_seed + switches.seeds)
    given = switches.parallel, switches.gin_bindings, switches.mode
    codes = runs.run_seeds(root, switches.gin_file, numbers, sys.stdout, *given)
    failed = {seed: code for seed, code in codes.items() if code}
    if not set(codes.values()) & {0}:
        return next(iter(failed.values())) & 0xFF
    from tflearn.extensions.experiments import comparison

    found = comparison.compare(str(root))
    comparison.write(found, root)
    print(f'\n{found}\n\nlearning curves: {root / "comparison.png"}')
    return 1 if failed else 0


def _tune(switches: flags.FlagValues) -> int:
    """Searches hyperparameters: tflearn tune --gin_file=ppo_cartpole --space=ppo --trials=30 --root_dir=runs/tune.

    Each trial is a run, in ROOT_DIR/trial_0, trial_1, ...; trials that fall behind are pruned. The
    same command continues what was stopped or killed. The best trials run again with fresh seeds.
    At the end ROOT_DIR has best.gin, which runs as it is, tuning.md with all trials, tuning.png
    with the history and the importances, and in best/ runs of best.gin with seeds that decided
    nothing, whose score is printed.
    """
    from tflearn.extensions.experiments import runs, tuning

    root = pathlib.Path(switches.root_dir)
    methods = (switches.sampler, switches.pruner)
    search = tuning.Tuning(root, num_trials=switches.trials, methods=methods, **values_of(switches, *_SEARCH))
    study = search.run(sys.stdout)
    if study is None:
        return runs.INTERRUPTED
    print(f'\nall trials: {root / "tuning.md"}', flush=True)
    if switches.seeds:
        found = tuning.run_finals(search, study, switches.finalists, switches.seeds, sys.stdout)
        if found is None:
            return 1
        print(f'\nfresh seeds: {found}')
    print(f'\nthe best settings: {root / "best.gin"}')
    return 0


def _population(switches: flags.FlagValues) -> int:
    """Trains a population: tflearn population --gin_file=ppo_cartpole --space=ppo --root_dir=runs/population.

    Population-based training: each member is a run with settings of its own. At the end of each
    generation the worst copy one of the best with all that it has learned, and go on with
    perturbed settings. The same command continues what was stopped or killed. ROOT_DIR/population.md
    has the generations, and the lineage of the best run, which is printed.
    """
    from tflearn.extensions.experiments import population, runs, tuning

    root = pathlib.Path(switches.root_dir)
    search = tuning.Tuning(root, num_trials=0, **values_of(switches, *_SEARCH))
    names = ('generations', 'quantile', 'factor', 'resample', 'seed')
    found = population.Population(search, switches.population, **values_of(switches, *names)).run(sys.stdout)
    if found is None:
        return runs.INTERRUPTED
    print(
        f'\n{(root / "population.md").read_text(encoding="utf-8")}\nthe best run: {root / f"trial_{found[0].number}"}'
    )
    return 0


def _policies(switches: flags.FlagValues, *given: str) -> int:
    """Trains several policies of one game: tflearn policies --root_dir=runs/talk speaker=talk.gin listener=talk.gin.

    Each argument is a policy of `pettingzoo_env.make.policies` and the gin file of its run, which
    is in ROOT_DIR/speaker. In it the other policies play as their runs export them. The same
    command continues what was stopped; tflearn list shows all of them.
    """
    from tflearn.extensions.experiments import overview, policies

    gin_files = policies.read(given)
    root = pathlib.Path(switches.root_dir)
    codes = policies.run(root, gin_files, sys.stdout, switches.gin_bindings, switches.mode, switches.partner)
    if failed := [code for code in codes.values() if code]:
        return failed[0] & 0xFF
    print(f'\n{overview.table(str(root))}')
    return 0


def _list(switches: flags.FlagValues, *roots: str) -> int:
    """Lists the runs in a folder and its sub-folders: tflearn list DIR [DIR ...].

    It says of each run how it is (done, failed, running, stopped), its steps, the mean return of
    its newest and of its best evaluation, and when it last reported. It writes nothing.
    """
    from tflearn.extensions.experiments import overview

    print('\n\n'.join(map(overview.table, roots)))
    return 0


def _watch(switches: flags.FlagValues, root: str) -> int:
    """Shows a run that runs elsewhere, until it is done: tflearn watch RUN.

    RUN is the --root_dir of a run, or its URL in an object store. It shows what tflearn-launch
    shows, by the files that the jobs write: in a terminal a live view, otherwise a line every ten
    seconds. Ctrl-C ends only the view.
    """
    from tflearn.launch import local, reports, supervisor

    with opened_run_dir(root, 'watch') as run_dir:
        supervisor.check_reported(run_dir)
        supervisor.watch(run_dir, local.make_view(sys.stdout, run_dir))
        if done := read_json(run_dir.done, messages.Done):
            print('\n'.join(reports.done_lines(run_dir, done)))
            return 0
        print(f'The run has ended without a result; its logs are in {reports.quoted(run_dir.logs)}.')
        return 1


def _compare(switches: flags.FlagValues, *roots: str) -> int:
    """Compares runs by their evaluations: tflearn compare RUN [RUN ...].

    Each RUN is a group: a folder of runs, as tflearn seeds makes it, or the --root_dir of one run;
    single runs whose configuration differs in seeds only are one group. It prints a table: the
    score of each group, and whether it is better than the first group, with an exact p. It writes
    nothing but --output.
    """
    from tflearn.extensions.experiments import comparison

    names = ('axis', 'metric', 'lower_is_better', 'paired', 'equal_within')
    found = comparison.compare(*roots, **values_of(switches, *names))
    print(found)
    if switches.output:
        comparison.write(found, pathlib.Path(switches.output))
        print(f'\nlearning curves: {pathlib.Path(switches.output) / "comparison.png"}')
    return 0


def _report(switches: flags.FlagValues, *roots: str) -> int:
    """Writes one page about runs: tflearn report RUN [RUN ...] [--output=report.html].

    The page needs no network. It says which setting was best, how sure that is, what was slow, and
    how to repeat it; and shows curves, the time of each part, episodes, configurations, how the
    runs ended, and a video if one was recorded. Each RUN is a group, as for tflearn compare.
    """
    from tflearn.extensions.experiments import report

    output = local_path(switches.output, '--output')
    print(report.write(roots, output, switches.axis, switches.metric, switches.lower_is_better))
    print(f'\nwritten to {output}')
    return 0


def _doctor(switches: flags.FlagValues, *roots: str) -> int:
    """Checks a run's metrics for signs that it does not learn: tflearn doctor ROOT_DIR [ROOT_DIR ...].

    It reads the summaries of the train, collect and evaluate jobs, of a running or an ended run,
    and writes nothing. Each line is a check: LOOK (it looks wrong), ok, or unknown (the run has not
    recorded the metric), with the value that was found and the section of the documentation that
    explains it and says what to do.
    """
    from tflearn.extensions.experiments import checks, series

    num_wrong = 0
    for root in roots:
        with opened_run_dir(root, 'doctor') as run_dir:
            findings = checks.run_all(series.read(run_dir))
        num_wrong += sum(finding.wrong is True for finding in findings)
        if switches.json:
            print(json.dumps([{'run': root, **vars(finding), 'link': finding.link} for finding in findings]))
            continue
        print(f'{root}: {checks.summary(findings)}')
        for finding in findings:
            print(f'  {_STATES[finding.wrong]:8}{finding.check:20}{finding.text}')
            if finding.wrong:
                print(f'{"":30}see {finding.link}')
    return int(num_wrong > 0 and switches.strict)


def _track(switches: flags.FlagValues, root: str) -> int:
    """Sends what a run records to a tracker: tflearn track RUN --to=wandb:PROJECT.

    RUN is the --root_dir of a run on this machine, which may go on: it is followed until it has
    ended. Each point is given once, also if the program is stopped and started again. It loads no
    TensorFlow, so it may run in an environment of its own.

    --to is jsonl[:FILE], hparams, mlflow[:URI], wandb[:PROJECT], aim[:REPOSITORY], or
    FILE.py:FUNCTION, a function of yours that gets each event.
    """
    from tflearn.extensions.experiments import trackers

    run_dir = RunDir(root)
    name, make = trackers.make(run_dir, switches.to)
    count = trackers.follow(run_dir, name, make, switches.poll_secs, switches.once)
    print(f'gave {count} events of {run_dir.root} to {switches.to}')
    return 0


VERBS = {
    'seeds': Verb(_seeds, ('seeds',), required=('gin_file', 'root_dir')),
    'tune': Verb(_tune, ('search', 'tune'), required=('gin_file', 'root_dir')),
    'population': Verb(_population, ('search', 'population'), required=('gin_file', 'root_dir')),
    'policies': Verb(_policies, ('policies',), required=('root_dir',), arguments='POLICY=GIN_FILE ...'),
    'list': Verb(_list, arguments='DIR ...'),
    'watch': Verb(_watch, arguments='RUN'),
    'compare': Verb(_compare, ('measure', 'compare'), arguments='RUN ...'),
    'report': Verb(_report, ('measure', 'report'), arguments='RUN ...'),
    'doctor': Verb(_doctor, ('doctor',), arguments='ROOT_DIR ...'),
    'track': Verb(_track, ('track',), required=('to',), arguments='RUN'),
}
