"""Named search spaces: dotted keys of a run's config → ray.tune domains, made around the values of a preset.

    combine("lr+states", values)                         named spaces, joined by +
    combine("optim.lr=1e-4..1e-2+model.states=16,32", values)     a range on a logarithmic scale, a list

``values`` is the preset flattened (`{"optim.lr": 0.002, "model.name": "rec", …}`), with its name under ``preset``. A key may join
fields that only make sense together: ``"model.gate,model.cell"`` takes pairs. A space whose fields the preset does not have is
refused, so that no senseless trial is drawn: a state count where there are no states, for example.

A space may vary the pseudo-field ``preset``: fields given on the command line then override each of its presets. Plug-ins add
their own spaces to SPACES, as `studies/papers/` adds the papers' tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from common.errors import nearest

Values = Mapping[str, Any]
Domains = dict[str, Any]

KINDS: Mapping[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    bool: {"true": True, "false": False}.__getitem__,
}
"""Reads a word as a value of a field, by the field's type."""


@dataclass(frozen=True)
class Space:
    """A search space: the fields that a sweep varies, and their domains."""

    about: str
    """One line for --help."""
    needs: tuple[str, ...]
    """Fields that the preset must have."""
    domains: Callable[[Values], Domains]
    preset: str = ""
    """Preset of a sweep that names none; empty for the command's own default."""
    search: str = ""
    """Search of a sweep that names none; empty for the command's own default."""
    metric: str = ""
    """Metric of a sweep that names none; empty for the command's own default."""


def choice(values: Sequence[Any]) -> Any:
    """Ray Tune's domain for a list of values. Like `loguniform`, it imports Ray only when called: the import takes seconds."""
    from ray import tune

    return tune.choice(values)


def loguniform(low: float, high: float) -> Any:
    """A range on a logarithmic scale."""
    from ray import tune

    return tune.loguniform(low, high)


def lr(values: Values) -> Domains:
    rate = values["optim.lr"]
    return {"optim.lr": loguniform(rate / 10, rate * 10)}


def states(values: Values) -> Domains:
    return {"model.states": choice(_around(values["model.states"], (0.25, 0.5, 1, 2)))}


def window(values: Values) -> Domains:
    """Windows whose new tokens divide the segment into two or more parts. A window's overlap with the one before is not new."""
    length = values["data.segment_length"]
    overlap = values.get("model.overlap", 0)
    windows = _around(values["model.window"], (0.25, 0.5, 1, 2))
    fitting = [size for size in windows if size > overlap and length % (size - overlap) == 0]
    return {"model.window": choice([size for size in fitting if length >= 2 * (size - overlap)])}


def gate(values: Values) -> Domains:
    return {"model.gate,model.cell": choice(list(product(("fixed", "lstm"), ("dual", "single", "skip"))))}


def optimizer(values: Values) -> Domains:
    """Each optimizer with learning rates of its own: adafactor's are relative to the size of a parameter."""
    rates: dict[str, tuple[float, ...]] = {"adamw": (3e-4, 1e-3, 3e-3), "adafactor": (0.003, 0.01, 0.03)}
    own = values["optim.lr"]
    rates[values["optim.name"]] = tuple(float(f"{rate:.3g}") for rate in (own / 3, own, own * 3))
    return {"optim.name,optim.lr": choice([(name, rate) for name, some in rates.items() for rate in some])}


def schedule(values: Values) -> Domains:
    """Shapes and warm-ups. Only the cosine varies `min_lr_ratio`; the other shapes keep the preset's."""
    final = values["schedule.min_lr_ratio"]
    warmups = _around(values["schedule.warmup_steps"], (0.5, 1, 2))
    shapes = [("cosine", 0.0), ("cosine", 0.1), ("inverse-sqrt", final), ("constant", final)]
    return {"schedule.name,schedule.min_lr_ratio": choice(shapes), "schedule.warmup_steps": choice(warmups)}


def segment(values: Values) -> Domains:
    """Multiples of two windows, so that any window of the space `window` divides them; or else of one window."""
    length = values["data.segment_length"]
    size = values["model.window"]
    lengths = _around(length, (0.5, 1, 2, 4))
    fitting = [new for new in lengths if new % (2 * size) == 0] or [new for new in lengths if new % size == 0]
    return {"data.segment_length": choice(fitting)}


def size(values: Values) -> Domains:
    fields = ("model.d_model", "model.heads", "model.mlp_dim")
    sizes = _scaled(values, fields)
    shared = values.get("model.kv_heads") or 1  # it divides the heads
    taken_from_file = 0 in (values[field] for field in fields)
    fitting = [size for size in sizes if size[1] % shared == 0 and not taken_from_file]
    return {",".join(fields): choice(list(dict.fromkeys(fitting)))}


def staircase_passes(values: Values) -> Domains:
    """Passes, no more than a cached staircase has chunks; and chunks that divide the segment."""
    passes = [count for count in (1, 2, 4, 8) if count <= values.get("model.chunks", count)]
    chunks = _around(values["model.chunk"], (0.5, 1, 2))
    fitting = [size for size in chunks if values["data.segment_length"] % size == 0]
    return {"model.passes": choice(passes), "model.chunk": choice(fitting)}


def matrix_states(values: Values) -> Domains:
    """Sizes of keys and values, whose product is the State of a mixer's head."""
    fields = ("model.key_dim", "model.value_dim")
    return {",".join(fields): choice(_scaled(values, fields))}


def delta(values: Values) -> Domains:
    """The transitions of the delta rule: eigenvalues from 0 to 1, from −1 to 1, and the product of two of these."""
    transitions = [(False, 1), (True, 1), (True, 2)] if "delta" in values["model.layers"] else []
    return {"model.negative_eigenvalues,model.householders": choice(transitions)}


SPACES: dict[str, Space] = {
    "lr": Space("learning rate, a tenth to ten times the preset's", ("optim.lr",), lr),
    "states": Space("state vectors, a quarter to double", ("model.states",), states),
    "window": Space("window, a quarter to double, where it divides the segment", ("model.window",), window),
    "gate": Space("gate and configuration, the six cells", ("model.gate", "model.cell"), gate),
    "optimizer": Space("AdamW and Adafactor, with rates of their own", ("optim.name", "optim.lr"), optimizer),
    "schedule": Space("shape of the learning rate, and warm-up", ("schedule.name",), schedule),
    "segment": Space("segment length, half to four times", ("data.segment_length", "model.window"), segment),
    "staircase-passes": Space(
        "recurrent steps, 1 to 8, and forward size, half to double", ("model.passes", "model.chunk"), staircase_passes
    ),
    "matrix-states": Space(
        "keys and values of a mixer's head, half to double", ("model.key_dim", "model.value_dim"), matrix_states
    ),
    "delta": Space("eigenvalues and keys per token of the delta rule", ("model.householders",), delta),
    "size": Space("width, heads and MLP, half to double", ("model.d_model", "model.heads", "model.mlp_dim"), size),
}


def parts_of(text: str) -> list[str]:
    """The named spaces and fields that + joins, with blanks around it or not. The + of a number, as in 1e+3, joins nothing."""
    return re.split(r"\s*\+\s*(?=[a-z])", text.strip())


def fields(domains: Mapping[str, Any]) -> list[str]:
    """The dotted names of the fields that are varied."""
    return [field for key in domains for field in key.split(",")]


def combine(text: str, values: Values) -> Domains:
    """The domains of spaces joined by +, each listed value once.

    Raises ValueError for an unknown space or field, and for a space that does not fit the preset. The config of a run checks later
    whether the values fit.
    """
    domains: Domains = {}
    for part in parts_of(text):
        found = _inline(part, values) if "=" in part else _named(part, values)
        again = set(fields(domains)).intersection(fields(found))
        if again:
            raise ValueError(f"the space {text!r} varies {sorted(again)[0]} twice: leave one of its parts out")
        for key, domain in found.items():
            for field in key.split(","):
                if field not in values:
                    raise ValueError(f"the space {part!r} varies {field}, which {values['preset']} does not have")
            domains[key] = _checked(part, key, domain, values)
    return domains


def _checked(part: str, key: str, domain: Any, values: Values) -> Any:
    """The domain of a key, each listed value once. Raises ValueError where nothing can be drawn from it."""
    if not hasattr(domain, "sample"):
        raise ValueError(
            f"the space {part!r} has {domain!r} for {key}: it must be a domain such as ray.tune.choice([…])"
        )
    count = len(key.split(","))
    listed = getattr(domain, "categories", None)
    if listed is None:
        if count > 1:
            raise ValueError(f"the space {part!r} has a range for {key}: fields that are joined take a list of pairs")
        return domain
    if not listed:
        raise ValueError(f"the space {part!r} has no value that fits {values['preset']}: vary something else")
    unique: list[Any] = []
    for value in listed:
        if count > 1 and not (isinstance(value, (list, tuple)) and len(value) == count):
            raise ValueError(f"the space {part!r} has {value!r} for {key}: give {count} values, one for each field")
        if value not in unique:
            unique.append(value)
    return domain if len(unique) == len(listed) else choice(unique)


def _named(name: str, values: Values) -> Domains:
    if name in values:
        raise ValueError(f"{name} is a field: give its values too, as in {name}=a,b,c")
    if name not in SPACES:
        raise ValueError(f"unknown space {name!r}: {nearest(name, SPACES)}; or vary a field, as in optim.lr=1e-4..1e-2")
    for field in SPACES[name].needs:
        if field not in values:
            raise ValueError(
                f"the space {name!r} varies {field}, which {values['preset']} does not have (its model is "
                f"{values['model.name']}): choose another preset or space"
            )
    return SPACES[name].domains(values)


def _inline(part: str, values: Values) -> Domains:
    """`field=low..high`, on a logarithmic scale, or `field=a,b,c`."""
    field, _, written = part.partition("=")
    field = field.strip().replace("-", "_")
    if field not in values:
        remedy = "python -m pipelines.train PRESET --help lists the fields"
        near = nearest(field, values.keys() - {"preset"}, remedy)
        raise ValueError(f"{values['preset']} has no field {field!r}, which the space {part!r} varies: {near}")
    kind = type(values[field])
    try:
        if ".." in written:
            low, high = (float(end) for end in written.split(".."))
            if kind is not float or "..." in written or not 0 < low < high:  # else 1e-4...1e-2 would end at .1e-2
                raise ValueError
            return {field: loguniform(low, high)}
        if kind not in KINDS:
            raise ValueError
        return {field: choice(list(dict.fromkeys(KINDS[kind](word.strip()) for word in written.split(","))))}
    except (KeyError, ValueError):
        remedy = f"write {field}=a,b,c"
        if kind is float:
            remedy += f", or {field}=low..high with 0 < low < high"
        elif kind is bool:
            remedy = f"write {field}=true,false"
        elif kind is not int and kind is not str:
            remedy = "this form takes numbers, names, true and false: a plug-in's Space takes other values"
        raise ValueError(
            f"the space {part!r} does not give values of {field}, which is {values[field]} in {values['preset']}: {remedy}"
        ) from None


def _around(value: int, factors: tuple[float, ...]) -> list[int]:
    return list(dict.fromkeys(max(1, round(value * factor)) for factor in factors))


def _scaled(values: Values, fields: tuple[str, ...]) -> list[tuple[int, ...]]:
    """The values of some fields together: half, as they are, and double."""
    return [tuple(max(1, round(values[field] * factor)) for field in fields) for factor in (0.5, 1, 2)]
