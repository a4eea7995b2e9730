"""Experiences by single settings, which are put into their parts by name."""

import dataclasses

from tflearn.core.experience import BatchItems, Experience, Slicing, Uniform


def experience(kind=Uniform, batch_size=64, chunk_steps=16, **settings):
    """Makes an experience of a kind of replay; `settings` are fields of its parts."""
    return changed(Experience(replay=kind(), batch=BatchItems(batch_size), chunk_steps=chunk_steps), **settings)


def changed(original, **settings):
    """Returns the experience with other values of fields of its slicing and of its replay."""
    slicing = {name: settings.pop(name) for name in list(settings) if hasattr(Slicing(), name)}
    return dataclasses.replace(
        original,
        slicing=dataclasses.replace(original.slicing, **slicing),
        replay=dataclasses.replace(original.replay, **settings),
    )
