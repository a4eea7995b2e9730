"""Which bindings of a run are used: follows the references from the jobs' functions through bindings and macros."""

import dataclasses
import importlib
from collections.abc import Iterable, Mapping

from tflearn.config import names
from tflearn.config.names import Configurable
from tflearn.config.reader import Binding, Macro, Reference, Statements, leaves


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A name that stands for nothing, and a half-sentence that says why."""

    written: str
    place: str
    why: str
    in_value: bool


@dataclasses.dataclass
class Bound:
    """A binding with its names looked up.

    Attributes:
      target: whose parameter it binds; None for a macro's definition, or if it could not be found.
      references: what the references in its value stand for.
    """

    binding: Binding
    target: Configurable | None = None
    references: dict[Reference, Configurable] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Usage:
    """What is reached from some functions.

    Attributes:
      configurables: what may be called, with the gin scopes it may be called in.
      explicit: those of them that a reference names with a scope.
      macros: names of those whose value is asked for.
    """

    configurables: dict[Configurable, set[str]] = dataclasses.field(default_factory=dict)
    explicit: set[tuple[Configurable, str]] = dataclasses.field(default_factory=set)
    macros: set[str] = dataclasses.field(default_factory=set)

    def uses(self, bound: Bound) -> bool:
        if bound.target is None:
            return bound.binding.written in self.macros
        return any(_covers(bound.binding.scope, scope) for scope in self.configurables.get(bound.target, ()))


def resolve(
    statements: Statements, roots: Iterable[Configurable], load: names.Load = importlib.import_module
) -> tuple[list[Bound], list[Mistake]]:
    """Looks up every name in `statements`. What cannot be found is a mistake; all else is bound.

    Args:
      statements: of the run's files and flags.
      roots: the functions that programs call.
      load: see `names.import_modules`.
    """
    known = dict.fromkeys(roots)
    bounds: list[Bound] = []
    mistakes: list[Mistake] = []

    def find(binding: Binding, selector: str, written: str, in_value: bool) -> Configurable | None:
        try:
            found = names.find(binding, selector, known, load)
        except names.UnknownNameError as error:
            mistakes.append(Mistake(written, binding.place, str(error), in_value))
            return None
        known[found] = None
        return found

    for binding in statements.bindings:
        bound = Bound(binding)
        if binding.parameter:
            bound.target = find(binding, binding.selector, binding.written, in_value=False)
        for leaf in leaves(binding.value):
            if isinstance(leaf, Reference) and (found := find(binding, leaf.selector, repr(leaf), in_value=True)):
                bound.references[leaf] = found
        bounds.append(bound)
    return bounds, mistakes


def with_taken(
    bounds: Iterable[Bound], job: Configurable, takes: Mapping[str, tuple[Configurable, str]]
) -> list[Bound]:
    """Adds to each binding of another job's parameter that `job` takes over the same binding of its own.

    Args:
      bounds: the run's bindings.
      job: the job at hand.
      takes: by its parameter, the other job and the parameter there.
    """
    names = {source: name for name, source in takes.items()}
    result: list[Bound] = []
    for bound in bounds:
        result.append(bound)
        name = names.get((bound.target, bound.binding.parameter)) if bound.target and not bound.binding.scope else None
        if name:
            result.append(
                dataclasses.replace(bound, target=job, binding=dataclasses.replace(bound.binding, parameter=name))
            )
    return result


def final(bounds: Iterable[Bound], roots: Iterable[Configurable]) -> list[Bound]:
    """The bindings that count in the end: of several for one parameter the last, and only those that `roots` reach."""
    last = {
        (bound.target, bound.binding.scope, bound.binding.parameter or bound.binding.written): bound for bound in bounds
    }
    usage = reach(last.values(), roots)
    return [bound for bound in last.values() if usage.uses(bound)]


def reach(bounds: Iterable[Bound], roots: Iterable[Configurable]) -> Usage:
    """Follows references and macros from `roots`.

    A binding that a later one overrides counts too: whoever replaces a schedule by a number need not take back the
    schedule's bindings.

    Args:
      bounds: all bindings of the run.
      roots: the functions that programs call.
    """
    usage = Usage()
    targets: dict[Configurable, list[Bound]] = {}
    macros: dict[str, list[Bound]] = {}
    for bound in bounds:
        if bound.target:
            targets.setdefault(bound.target, []).append(bound)
        elif not bound.binding.parameter:
            macros.setdefault(bound.binding.written, []).append(bound)
    todo: list[tuple[Configurable | str, str]] = [(root, '') for root in roots]
    seen: set[tuple[Configurable | str, str]] = set()
    while todo:
        item, scope = todo.pop()
        if (item, scope) in seen:
            continue
        seen.add((item, scope))
        if isinstance(item, str):
            usage.macros.add(item)
            reached = macros.get(item, [])
        else:
            usage.configurables.setdefault(item, set()).add(scope)
            reached = [bound for bound in targets.get(item, []) if _covers(bound.binding.scope, scope)]
        for bound in reached:
            todo.extend(_followed(bound, scope, usage))
    return usage


def _followed(bound: Bound, scope: str, usage: Usage) -> list[tuple[Configurable | str, str]]:
    """What the value of `bound` leads to, when it is asked for in `scope`."""
    following: list[tuple[Configurable | str, str]] = []
    for leaf in leaves(bound.binding.value):
        if isinstance(leaf, Macro):
            following.append((leaf.name, leaf.name))  # gin evaluates a macro in a scope of its own name.
        elif target := bound.references.get(leaf):
            following.append((target, leaf.scope or scope))
            if leaf.scope:
                usage.explicit.add((target, leaf.scope))
            elif not leaf.evaluate:
                following.append((target, ''))  # Called later, wherever that will be.
    return following


def _covers(binding_scope: str, scope: str) -> bool:
    """Says whether a binding in `binding_scope` holds for calls in `scope`."""
    return not binding_scope or f'{scope}/'.startswith(f'{binding_scope}/')
