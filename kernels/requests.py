"""Which kernels to build: one in one configuration (a request), or in those among which calls choose (a dispatch)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter

from tkc.contracts import KERNEL_SYMBOL_PREFIX
from tkc.kernels.registry import SPECS
from tkc.kernels.spec import Choice, KernelSpec, as_json
from tkc.kernels.target import Target


@cache
def _reader(kind: type[Any]) -> TypeAdapter[Any]:
    """What reads JSON as ``kind``: it is made anew in a millisecond, and databases have hundreds of requests."""
    return TypeAdapter(kind)


@dataclass(frozen=True)
class KernelRequest:
    """One kernel to build: a spec's name, its parameters, one configuration, and the target.

    Equal requests are one kernel; :meth:`to_json` and :meth:`from_json` carry them between processes
    and into manifests.
    """

    kernel: str
    parameters: Any
    configuration: Any
    target: Target

    @property
    def spec(self) -> KernelSpec[Any, Any]:
        """The kernel's spec."""
        return SPECS[self.kernel]

    def to_json(self) -> dict[str, Any]:
        """The request as JSON-ready values; :meth:`from_json` reads them back."""
        return {
            "kernel": self.kernel,
            "parameters": as_json(self.parameters),
            "configuration": as_json(self.configuration),
            "target": str(self.target),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelRequest:
        """The request that :meth:`to_json` wrote."""
        spec = SPECS[data["kernel"]]
        return cls(
            kernel=spec.name,
            parameters=_reader(spec.parameters_type).validate_python(data["parameters"]),
            configuration=_reader(spec.configuration_type).validate_python(data["configuration"]),
            target=Target.parse(data["target"]),
        )

    @property
    def symbol(self) -> str:
        """The name of the one function that the kernel's library exports."""
        digest = hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:12]
        return f"{KERNEL_SYMBOL_PREFIX}{self.kernel.replace('.', '_')}_{digest}"

    def __str__(self) -> str:
        parameters = ", ".join(f"{k}={v}" for k, v in dataclasses.asdict(self.parameters).items())
        return f"{self.kernel}({parameters}) for {self.target}"


@dataclass(frozen=True)
class KernelDispatch:
    """One kernel in the configurations among which each call chooses, in ascending order of the sizes they serve.

    Only the last serves sizes without a limit. :meth:`to_json` and :meth:`from_json` carry it between processes.
    """

    kernel: str
    parameters: Any
    choices: tuple[Choice[Any], ...]
    target: Target

    def __post_init__(self) -> None:
        limits = [choice.most for choice in self.choices]
        ascending = all(a is not None and (b is None or a < b) for a, b in pairwise(limits))
        if not limits or limits[-1] is not None or not ascending:
            raise ValueError(f"the limits of a dispatch ascend and end without one; found {limits}")
        if len(limits) > 1 and self.spec.dispatch_size is None:
            raise ValueError(f"{self.kernel} has one configuration for all sizes; found {len(limits)}")

    @property
    def spec(self) -> KernelSpec[Any, Any]:
        """The kernel's spec."""
        return SPECS[self.kernel]

    def serving(self, least: int, most: int) -> KernelDispatch:
        """The same with the choices alone that sizes from ``least`` to ``most`` come to."""
        serves_from = (0, *(choice.most + 1 for choice in self.choices if choice.most is not None))
        kept = [
            choice
            for first, choice in zip(serves_from, self.choices, strict=True)
            if first <= most and (choice.most is None or choice.most >= least)
        ]
        return replace(self, choices=(*kept[:-1], Choice(kept[-1].configuration)))

    def configuration(self, sizes: Mapping[str, int]) -> Any:
        """The configuration that serves a call with these run-time sizes."""
        size = sizes.get(self.spec.dispatch_size or "", 0)
        return next(choice.configuration for choice in self.choices if choice.most is None or size <= choice.most)

    @property
    def requests(self) -> tuple[KernelRequest, ...]:
        """A request for each choice."""
        return tuple(KernelRequest(self.kernel, self.parameters, c.configuration, self.target) for c in self.choices)

    def to_json(self) -> dict[str, Any]:
        """The dispatch as JSON-ready values; :meth:`from_json` reads them back."""
        requests = [request.to_json() for request in self.requests]
        return {"requests": requests, "most": [choice.most for choice in self.choices]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelDispatch:
        """The dispatch that :meth:`to_json` wrote."""
        requests = [KernelRequest.from_json(request) for request in data["requests"]]
        choices = tuple(Choice(r.configuration, most) for r, most in zip(requests, data["most"], strict=True))
        return cls(requests[0].kernel, requests[0].parameters, choices, requests[0].target)
