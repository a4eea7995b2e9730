"""Describes what gin can bind: tflearn-help NAME.

NAME is a function or dataclass, such as experience.Uniform, or a setting, such as Uniform.max_size or max_size. It
prints what each setting is, the values that it can have, its unit and its default.
"""

from absl import flags

from . import job_flags, preflight


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-help', __doc__, _run, arguments='NAME')


def _run(switches: flags.FlagValues, name: str) -> int:
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.config import reference  # After the flags are parsed: it loads TensorFlow.

    print(reference.text(name))
    return 0


if __name__ == '__main__':
    main()
