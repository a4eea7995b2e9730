"""What to install where an environment needs a package that is missing."""

# Module -> the extra of this package that installs it.
_EXTRAS = {
    'mujoco': 'mujoco',
    'ale_py': 'atari',
    'Box2D': 'box2d',
    'envpool': 'envpool',
    'dm_control': 'dm_control',
    'dm_env': 'dm_control',
}


def missing(name: str, error: BaseException) -> ValueError:
    """Returns the error to raise, in one line, where making the environment `name` raised `error`.

    gymnasium's own message is about the module; its cause names it.
    """
    cause = error if isinstance(error, ImportError) else error.__cause__
    module = (getattr(cause, 'name', None) or '').partition('.')[0]
    if module in _EXTRAS:
        what, remedy = module, f'pip install "tflearn-agents[{_EXTRAS[module]}]"'
    else:
        what, remedy = module or 'a package', f'install it ({error})'
    return ValueError(f'got name={name!r}, which needs {what}; need that installed; {remedy}')
