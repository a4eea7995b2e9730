"""The verbs of the core that are no jobs."""

from absl import flags

from tflearn.core import preflight
from tflearn.core.errors import UserValueError
from tflearn.core.verbs import Verb

from . import shell_words


def _check_env(switches: flags.FlagValues, name: str) -> int:
    """Checks an environment before anything is trained in it: tflearn check-env ENVIRONMENT.

    ENVIRONMENT is a registered name (CartPole-v1, module:Name-v0), or module:Class or module:function, which makes one
    gymnasium environment. It takes random actions, and prints a line for each check: ok, LOOK (it can be trained in,
    but probably not as it was meant) or error. The exit status is 1 after an error.
    """
    preflight.import_from_here()
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.environments import check

    found = check.check_environment(check.imported(name), switches.steps, switches.seed, switches.secs)
    print('\n'.join(map(str, found)))
    states = [finding.state for finding in found]
    return int('error' in states or (switches.strict and 'LOOK' in states))


def _help(switches: flags.FlagValues, name: str) -> int:
    """Describes what gin can bind: tflearn help NAME.

    NAME is a function or dataclass, such as experience.Uniform, or a setting, such as Uniform.max_size or max_size. It
    prints what each setting is, the values that it can have, its unit and its default.
    """
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.config import reference  # After the flags are parsed: it loads TensorFlow.

    print(reference.text(name))
    return 0


def _completion(switches: flags.FlagValues, shell: str) -> int:
    """Prints what makes a shell complete verbs, programs and flags: tflearn completion bash, or zsh.

    source <(tflearn completion bash)     in ~/.bashrc
    source <(tflearn completion zsh)      in ~/.zshrc, after compinit
    """
    if shell not in shell_words.SHELLS:
        raise UserValueError(f'got {shell!r}; need one of {", ".join(shell_words.SHELLS)}')
    print(shell_words.script(shell))
    return 0


VERBS = {
    'check-env': Verb(_check_env, ('check_env',), arguments='ENVIRONMENT'),
    'help': Verb(_help, arguments='NAME'),
    'completion': Verb(_completion, arguments='SHELL'),
}
