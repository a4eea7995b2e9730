"""The flags that all jobs have: their definitions, help and checks; and the run directory that one of them names."""

import contextlib
import os
import re
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from absl import flags, logging

from tflearn.config import files
from tflearn.core import extras, tokens
from tflearn.core.errors import UserError, UserValueError, as_user_error
from tflearn.core.waiting import HOST_PORT
from tflearn.files.run_dir import RunDir, is_url, local_path

DEFAULT_REPLAY_ADDRESS, DEFAULT_COORDINATOR_ADDRESS = 'localhost:8008', 'localhost:8009'

_WIDTH = 118

_MAX_SECS = 1e9  # Threads cannot wait for longer than ten times this.

# absl adds this to the help of flags that may be repeated.
_REPEATED = re.compile(r';\s*repeat this option to specify a list of values$')

_GIN_BINDINGS_HELP = """\
A gin statement that overrides the gin file; may be given many times, each in quotes:
  'train.StopConditions.num_train_steps=1000'    names as in the gin files: module.function.argument
  'StopConditions.num_train_steps=1000'          without the module, where one function of the run has that name
  'tflearn.jobs.train.StopConditions.num_train_steps=1000'  or with the full path
  'gymnasium_env.make.name="CartPole-v1"'        strings need their own quotes
  'make_agent=@dqn.make_agent'                   a macro
  'from tflearn.optimization import schedules'         if no gin file of the run imports that module"""

_BACKEND_OPTION_HELP = """\
name=value, an option of --backend; may be given many times. docs/clusters.md lists them:
  --backend=slurm --backend_option=partition=gpu --backend_option=time=04:00:00"""
_RESOURCES_HELP = """\
KIND:name=value,... are the resources of each job of a kind; may be given once for each kind:
  --resources=collect:cores=1,memory_gb=2
  --resources=train:cores=4,memory_gb=8,accelerators=1,accelerator=a100
Other names are countable resources of the cluster. On this machine, a job with cores=N gets N cores that no other
such job uses."""


def define_launch(backends: Sequence[str]) -> None:
    """Defines the flags of the program that starts all jobs; the first of `backends` is the default one."""
    flags.DEFINE_enum('backend', backends[0], list(backends), f'Where the jobs run: {", ".join(backends)}.')
    flags.DEFINE_bool('render', False, 'Print what would be run or submitted, and run nothing.')
    flags.DEFINE_multi_string('backend_option', [], _BACKEND_OPTION_HELP)
    flags.DEFINE_multi_string('resources', [], _RESOURCES_HELP)
    flags.DEFINE_integer(
        'num_workers',
        1,
        'Processes of the train job, which train together; on a cluster, one for each machine.',
        lower_bound=1,
    )
    flags.DEFINE_integer('num_collectors', 1, 'How many collect jobs to start.', lower_bound=1)
    flags.DEFINE_integer('num_replay_servers', 1, 'How many replay servers share the replay.', lower_bound=1)
    flags.DEFINE_bool(
        'coordinator_alone',
        None,
        'Whether the coordinator is a separate program, and not a part of the replay server; the default if there are '
        'several replay servers.',
    )
    flags.DEFINE_integer(
        'num_relays',
        None,
        'Number of relays. Collectors get weights from a relay, so the coordinator sends them only to the relays. By '
        'default one for each hundred collectors, if there are more than two hundred.',
        lower_bound=0,
        upper_bound=10_000,
    )
    flags.DEFINE_integer(
        'num_feed_workers',
        0,
        'Number of feed workers (tflearn-feed), which send batches to a train job without Reverb (local only). 0: '
        'train reads the replay servers itself.',
        lower_bound=0,
    )
    flags.DEFINE_bool(
        'warm_start', True, 'Load the libraries once and fork the jobs; --nowarm_start: each job loads them.'
    )
    define_replay_backend()
    define_secs(
        'silent_timeout_secs',
        300.0,
        'A running job that has not reported for this long is killed and started again [s]; 0: never. Must be longer '
        'than the longest step and the longest reset of an environment.',
    )


def define_secs(name: str, default: float, help: str, least: float = 0.0) -> None:
    """Defines a flag of seconds: of a number that threads can wait for."""
    define_number(name, default, help, least, _MAX_SECS)


def define_number(
    name: str, default: float | None, help: str, *bounds: float, flag_values: flags.FlagValues = flags.FLAGS
) -> None:
    """Defines a flag of a number, between bounds if there are any. absl's own takes NaN for a number within them."""
    define: Any = flags.DEFINE_float  # whose types know no default that is a number or None
    define(name, default, help, *bounds, flag_values=flag_values)
    is_number = lambda number: number is None or number == number  # noqa: E731
    flags.register_validator(name, is_number, 'need a number', flag_values=flag_values)


def define_process() -> None:
    """Defines the flags of every program that runs a job."""
    flags.DEFINE_string(
        'root_dir',
        None,
        'Directory of the run, or its URL in an object store (s3://bucket/run); created if missing. Same for all jobs.',
    )
    define_secs('connect_timeout_secs', 300.0, 'How long a job waits for another job before it gives up [s].')
    define_secs('stop_timeout_secs', 30.0, 'How long a job may take to end after SIGINT or SIGTERM [s].')
    flags.DEFINE_string('profile_python', None, 'A folder for a profile of the Python code of each job, <job>.prof.')
    define_help()


def define_help() -> None:
    """Defines the flags of every program that `read` reads the flags of."""
    flags.DEFINE_bool('help', False, 'Lists these flags. --version prints the versions.')
    flags.DEFINE_bool('helpfull', False, 'Lists these flags and those of the libraries.')


def define(name_flag: tuple[str, str] | None = None) -> None:
    """Defines the flags of a job that is configured by a gin file.

    Args:
      name_flag: name and default of the flag for the job's name, if a run may have several such jobs.
    """
    define_process()
    flags.DEFINE_string(
        'gin_file', None, "The run's gin file: a path, or the name of a packaged one (dqn_cartpole). Required."
    )
    flags.DEFINE_multi_string('gin_bindings', [], _GIN_BINDINGS_HELP)
    flags.DEFINE_bool(
        'share_with_group', False, 'Whether users of your group can read a new --root_dir; otherwise only you can.'
    )
    define_coordinator()
    flags.DEFINE_enum(
        'weights_dtype',
        'float32',
        ['float32', 'bfloat16'],
        'The dtype in which train sends float32 weights; bfloat16 needs half of the bytes.',
    )
    flags.DEFINE_bool(
        'code_snapshot',
        False,
        'Whether train records how the code differs from its git revision, in code_snapshot.md and in TensorBoard: '
        "this package's checkout and that of the working directory.",
    )
    if name_flag:
        flags.DEFINE_string(*name_flag, 'Name of this job; its status file and its log are named after it.')
        flags.register_validator(
            name_flag[0], lambda name: re.fullmatch(r'[\w-]+', name), 'need letters, digits, _ and -, and nothing else'
        )


@contextlib.contextmanager
def ending(program: str, interrupted: str = 'stopped by SIGINT') -> Iterator[None]:
    """Ends a program that runs no job by the exit statuses in docs/operate.md, as `job_process.run` ends a job.

    Args:
      program: the program's name, which begins the error line.
      interrupted: the line for SIGINT.
    """
    try:
        yield
    except KeyboardInterrupt:
        print(f'{program}: {interrupted}', file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # as in `tflearn-data describe ... | head`
        os._exit(128 + signal.SIGPIPE)
    except Exception as error:
        known = as_user_error(error)
        if isinstance(known, UserError):
            print(f'{program}: error: {" ".join(str(known).split())}', file=sys.stderr)
            sys.exit(2)
        traceback.print_exc()
        print(f'{program}: error: {type(error).__name__}: {" ".join(str(error).split())}', file=sys.stderr)
        sys.exit(1)


def tool(
    program: str,
    description: str | None,
    define: Callable[[flags.FlagValues], None],
    run: Callable[..., int],
    required: Sequence[str] = (),
    arguments: str = '',
) -> None:
    """Runs a program that is no job and has flags of its own only; does not return but for --help.

    Args:
      program: the program's name, which begins the error line.
      description: the docstring of the program's module, the first text of --help.
      define: defines the program's flags among the given ones.
      run: gets the flags, and the other arguments one by one; returns the exit status.
      required: the flags that have to be given.
      arguments: the other arguments: '' for none, 'RUN' for one, 'RUN ...' for one or more.
    """
    values = flags.FlagValues()
    define(values)
    own = list(values)
    flags.DEFINE_bool('help', False, 'Prints this text.', flag_values=values)
    with ending(program):
        rest = parse(sys.argv, values)
        if values.help:
            print(f'{program}: {description}\nFlags:\n\n' + '\n'.join(map(flag_help, map(values.__getitem__, own))))
            return
        need(values, *required)
        check_arguments(rest, arguments)
        sys.exit(run(values, *rest))


def need(values: flags.FlagValues, *names: str) -> None:
    """Raises ValueError if one of these flags is not given."""
    for name in names:
        if not values[name].value:
            raise UserValueError(f'got no --{name}; need one; see --help')


def check_arguments(given: Sequence[str], needed: str = '') -> None:
    """Raises ValueError if the arguments that are no flags are not what is needed: see `arguments` of `tool`."""
    if bool(given) != bool(needed) or (len(given) > 1 and not needed.endswith(' ...')):
        got = f'the argument {given[-1]!r}' if given else 'no argument'
        raise UserValueError(f'got {got}; need {needed or "flags only"}; see --help')


def read(
    program: str, description: str | None, check: Callable[[], object], example: str = '--gin_file=dqn_cartpole'
) -> bool:
    """Reads the command line of a program whose flags are defined; a wrong one ends the process with status 2.

    Args:
      program: the program's name, which begins the error line.
      description: the docstring of the program's module, the first text of --help.
      check: checks the values of flags without TensorFlow; raises a UserError that names the flag.
      example: flags after --root_dir in the example of --help.

    Returns:
      False if the program need not run, since it has shown its help.
    """
    with ending(program):
        rest = parse(sys.argv)
        if flags.FLAGS.help or flags.FLAGS.helpfull:
            print(_help_text(program, description or '', flags.FLAGS.helpfull, example))
            return False
        if flags.FLAGS['verbosity'].using_default_value:
            logging.set_verbosity(logging.INFO)
        check_arguments(rest)
        if 'root_dir' in flags.FLAGS:
            _check_root_dir()
        check()
    return True


@contextlib.contextmanager
def opened_run_dir(root: str, job: str, name: str = '') -> Iterator[RunDir]:
    """Gives the run directory that --root_dir names.

    Args:
      root: a path or a URL.
      job: the program, which decides what is copied from a URL and to it.
      name: the name of its status file, if that is another one.

    Raises:
      ValueError: if it cannot be used.
      ImportError: if it is a URL and fsspec is missing.
      OSError: if the last files could not be written to the store.
    """
    if not is_url(root):
        yield RunDir(root)
        return
    from tflearn.files import opening  # which loads fsspec

    with opening.opened(root, job, name) as run_dir:
        yield run_dir


def _check_root_dir() -> None:
    if not flags.FLAGS.root_dir:
        raise UserValueError(
            'got no --root_dir; need a directory for the files of the run, such as --root_dir=/tmp/run'
        )
    if not is_url(flags.FLAGS.root_dir):
        local_path(flags.FLAGS.root_dir, '--root_dir')


def parse(arguments: Sequence[str], values: flags.FlagValues = flags.FLAGS) -> list[str]:
    """Reads flags from the arguments after the first one; returns the other ones. Raises ValueError for wrong ones."""
    try:
        return list(values(arguments)[1:])
    except (flags.Error, OSError, UnicodeError) as error:  # the last ones: a file of --flagfile
        raise UserValueError(f'got a wrong flag: {" ".join(str(error).split())}; see --help') from error


def check() -> None:
    """Checks the flags of `define`, as far as the gin file is not needed. Raises ValueError that names the flag."""
    if not flags.FLAGS.gin_file:
        runs = ', '.join(files.runs())
        raise UserValueError(f'got no --gin_file; need the path of one, or one of {runs}')
    coordinator()


def coordinator() -> tuple[str, str | None, Literal['float32', 'bfloat16']]:
    """Returns the coordinator's address, where its token is, and the type that weights are sent as.

    Raises:
      ValueError: if the address is wrong, or there is no token; on a cluster the jobs look for theirs.
    """
    values = flags.FLAGS
    if values.coordinator_token and ('backend' not in values or values.backend == 'local'):
        tokens.read(values.coordinator_token, '--coordinator_token')
    return one_address('coordinator_address'), values.coordinator_token, values.weights_dtype


def of_run() -> dict[str, Any]:
    """Returns those fields of a `Run` that are flags of the same names."""
    names = ('replay_address', 'connect_timeout_secs', 'stop_timeout_secs')
    return {name: flags.FLAGS[name].value for name in names if name in flags.FLAGS}


def define_coordinator() -> None:
    """Defines the flags of every program that reaches the coordinator, or is it."""
    flags.DEFINE_string(
        'coordinator_address',
        DEFAULT_COORDINATOR_ADDRESS,
        'HOST:PORT of the coordinator, where the jobs of a run find each other and exchange weights, reports and '
        'credits. The replay server listens there, unless tflearn-coordinator does.',
    )
    flags.DEFINE_string('coordinator_token', None, 'File with the token of the coordinator, or env:NAME.')


def define_replay_address() -> None:
    """Defines the flag of the jobs that start a replay server."""
    flags.DEFINE_string(
        'replay_address',
        DEFAULT_REPLAY_ADDRESS,
        'HOST:PORT at which other jobs reach the replay server, which listens at that port; or valkey://HOST:PORT of a '
        'Valkey server that is already running (valkeys:// over TLS). TFLEARN_VALKEY_PASSWORD names its password: '
        'the path of a file, or env:NAME.',
    )


def define_replay_backend() -> None:
    """Defines the flag of the programs that start a replay server."""
    flags.DEFINE_enum(
        'replay_backend',
        extras.default_replay_backend(),
        ['reverb', 'valkey'],
        'The server that holds the replay: Reverb (the default where it is installed), or Valkey (only for jobs of '
        'this machine).',
    )


def define_feed() -> None:
    """Defines the flag of the jobs that know the feed."""
    flags.DEFINE_string(
        'feed_address',
        '',
        'HOST:PORT of the feed (tflearn-feed), which sends batches to a learner without Reverb; by default train reads '
        'the replay servers itself.',
    )


def shared_with_server() -> dict[str, str]:
    """Returns the arguments that a job which reads the replay servers has from their bindings."""
    return {name: f'replay_server.{name}' for name in ('make_environment', 'make_agent', 'experience')}


def feed_address() -> str:
    """Returns the feed's address. Raises ValueError if there is none, or if it is wrong."""
    if not flags.FLAGS.feed_address:
        raise UserValueError('got no --feed_address; need HOST:PORT, where the feed listens')
    return one_address('feed_address')


def given_value(name: str) -> Any:
    """Returns the value of a flag that the user gave; None for a default."""
    return None if flags.FLAGS[name].using_default_value else flags.FLAGS[name].value


def given(*names: str) -> list[str]:
    """Returns those of the flags that the user gave, for another program."""
    return [f'--{name}={flags.FLAGS[name].value}' for name in names if not flags.FLAGS[name].using_default_value]


def one_address(flag: str) -> str:
    """Returns the address in a flag; raises ValueError for another value."""
    return check_address(str(flags.FLAGS[flag].value), flag)


def check_address(address: str, flag: str) -> str:
    """Returns an address, HOST:PORT. Raises ValueError, which names the flag, if it is something else."""
    match = HOST_PORT.fullmatch(address)
    if not match or not 1 <= int(match[2]) <= 65535:
        raise UserValueError(f'got --{flag}={address}; need HOST:PORT with a port from 1 to 65535')
    return address


def _help_text(program: str, description: str, full: bool, example: str) -> str:
    """Returns the text of --help; if `full`, with the flags of the libraries."""
    modules = flags.FLAGS.flags_by_module_dict()
    ours = [flag for module, items in modules.items() if not module.startswith('absl') for flag in items]
    root = '--root_dir=/tmp/run ' if 'root_dir' in flags.FLAGS else ''
    about = [textwrap.fill(paragraph, _WIDTH) for paragraph in f'{program}: {description.strip()}'.split('\n\n')]
    parts = [*about, f'Example: {program} {root}{example}']
    parts += ['Flags:', *map(flag_help, ours)]
    if full:
        theirs = [flag for module, items in modules.items() if module.startswith('absl') for flag in items]
        parts += ['Flags of the logging library:', *map(flag_help, theirs)]
    return '\n\n'.join(parts)


def flag_help(flag: flags.Flag) -> str:
    """Returns the text of a flag in --help."""
    default = '' if flag.default in (None, [], False) else f' [{flag.default}]'
    lines = (_REPEATED.sub('', flag.help or '') + default).splitlines()
    text = '\n'.join(line if line.startswith(' ') else textwrap.fill(line, _WIDTH - 6) for line in lines)
    return f'  --{flag.name}\n{textwrap.indent(text, "      ")}'
