"""Which parameter goes to which group of which optimizer, decided for the whole model.

A stage that asked a rule about its own parameters alone would number its groups as it finds them, and a scheduler with
a rate for each group, or a saved state, would mean another one on each stage. So every process decides with all names
of the model, and a stage then fills in its own parameters: a group that has none here is there all the same.

Frozen parameters (requires_grad=False) get no gradient and are left out. A pattern may match nothing but those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.worker.user_errors import user_error

Named = Mapping[str, nn.Parameter]  # by the first name in the unsplit model, in its order
Options = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerChoice:
    """What a job says of an optimizer; of `groups` and `rule` one at most."""

    pattern: str = "*"  # of the names that it takes
    make: Callable[..., Any]
    groups: Mapping[str, Options]  # by pattern
    rule: Callable[..., Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """`names` are in the order of the model."""

    options: Options
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Allotment:
    """The groups of one optimizer over the whole model; None: all in one, and none was asked for."""

    make: Callable[..., Any]
    names: tuple[str, ...]
    groups: tuple[Group, ...] | None


def allot(choices: Sequence[OptimizerChoice], parameters: Named, where: Where) -> tuple[Allotment, ...]:
    """What each of them gets: of those whose pattern matches, the first takes a parameter.

    `parameters` are those of the whole model; of other stages they may be without values. Raises INVALID_JOB where one
    that is trained is taken by none, and where a pattern is left with nothing.
    """
    if not choices:  # of a prediction, which updates nothing
        return ()
    taken: list[dict[str, nn.Parameter]] = [{} for _ in choices]
    for name, parameter in parameters.items():
        place = next((place for place, each in enumerate(choices) if fnmatchcase(name, each.pattern)), None)
        if place is not None:
            taken[place][name] = parameter
        elif parameter.requires_grad:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"no optimizer takes the parameter {name!r}",
                advice='Add an optimizer for the pattern "*", or freeze it (requires_grad=False)',
                where=where,
            )
    for choice, own in zip(choices, taken, strict=True):
        if not own and parameters:
            raise _left_with_nothing(choice, parameters, where)
    return tuple(_allot(choice, own, where) for choice, own in zip(choices, taken, strict=True))


def _left_with_nothing(choice: OptimizerChoice, parameters: Named, where: Where) -> PipesvcError:
    what = f"the pattern {choice.pattern!r} of optimizer"
    if not any(fnmatchcase(name, choice.pattern) for name in parameters):
        return unmatched(what, parameters, where)
    return PipesvcError(
        ErrorCode.INVALID_JOB,
        f"{what} is left with no parameter: those before it take all that it matches",
        advice="Put the narrower pattern first",
        where=where,
    )


def _allot(choice: OptimizerChoice, parameters: Named, where: Where) -> Allotment:
    """Groups by pattern come in the order of the patterns, then one for the rest; those of a rule in the order in which
    they are first asked for. One that would hold nothing is left out.
    """
    trained = {name: each for name, each in parameters.items() if each.requires_grad}
    groups: Sequence[Group] | None = None
    if choice.rule is not None:
        groups = _by_rule(choice.rule, trained, where)
    elif choice.groups:
        groups = _by_pattern(choice.groups, parameters, trained, where)
    return Allotment(make=choice.make, names=tuple(trained), groups=None if groups is None else tuple(groups))


def _by_pattern(patterns: Mapping[str, Options], parameters: Named, trained: Named, where: Where) -> list[Group]:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            raise unmatched(f"the pattern {pattern!r} of groups", parameters, where)
    found: dict[str | None, list[str]] = {pattern: [] for pattern in [*patterns, None]}
    for name in trained:
        found[next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)].append(name)
    return [
        Group(options={} if pattern is None else patterns[pattern], names=tuple(names))
        for pattern, names in found.items()
        if names
    ]


def unmatched(what: str, parameters: Named, where: Where) -> PipesvcError:
    """The refusal of a pattern, which is most often a slip, with the names that there are."""
    names = list(parameters)
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return PipesvcError(
        ErrorCode.INVALID_JOB,
        f"{what} matches no parameter of the model",
        advice=f"Patterns are for whole names, as fnmatch takes them. The model has {shown or 'no parameter'}",
        where=where,
    )


def _by_rule(rule: Callable[..., Any], trained: Named, where: Where) -> list[Group]:
    found: dict[str, tuple[Options, list[str]]] = {}
    for name, parameter in trained.items():
        try:
            options = rule(name, parameter)
        except Exception as cause:
            doing = f"the rule of groups for {name!r}"
            raise user_error(ErrorCode.BUILD_FAILED, doing, cause, where=where) from cause
        found.setdefault(_key(name, options, where), (options, []))[1].append(name)
    return [Group(options=options, names=tuple(names)) for options, names in found.values()]


def _key(name: str, options: object, where: Where) -> str:
    """Equal for equal options."""
    try:
        if isinstance(options, dict) and all(isinstance(key, str) for key in options):
            return json.dumps(options, sort_keys=True)
    except (TypeError, ValueError):
        pass
    raise PipesvcError(
        ErrorCode.INVALID_JOB,
        f"the rule of groups gave {type(options).__name__} {options!r:.80} for {name!r}",
        advice='Return a dict of options with plain values, such as {"weight_decay": 0.0}, or {}',
        where=where,
    )
