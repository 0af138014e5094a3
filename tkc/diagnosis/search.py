"""Where a compilation failed: the function, the smallest part of the model that fails alike, and its nodes."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import IRModule, tirx

from tkc.child import ChildDiedError, RaisedInChildError, can_fork, ended, in_child
from tkc.diagnosis.segments import Segment, narrowed, whole
from tkc.errors import InternalError
from tkc.failures import Circumstances, Place, kind_of
from tkc.frontend.model import ImportedModel

_LOG = logging.getLogger(__name__)
_SEARCH_SECONDS = 60.0


@dataclass
class Search(Circumstances):
    """Looks for what failed in a compilation, by compiling parts of the model in the same way.

    ``replay`` compiles another module in the same way up to a stage, and raises what that stage raises. ``build``
    does the work of a stage that takes functions one by one, by its name, for a module of one of them.
    """

    imported: ImportedModel | None = None
    replay: Callable[[IRModule, str], None] | None = None
    build: Mapping[str, Callable[[IRModule], object]] = field(default_factory=dict)

    def locate(self, failure: InternalError, module: Any) -> Place:
        """The function, found by building each alone, and the nodes of the smallest part that fails alike."""
        function = failure.function or _function(failure, self, module)
        try:
            smallest = _smallest(failure, self)
            if smallest is None or self.imported is None:
                return Place(function)
            return Place(function, _nodes(smallest, self.imported.sources), smallest.alone())
        except Exception:
            _LOG.debug("looking for the node failed", exc_info=True)
            return Place(function)


def _smallest(explanation: InternalError, circumstances: Search) -> Segment | None:
    """The smallest part of the model that fails in the same way, looked for in children of this process."""
    imported, replay = circumstances.imported, circumstances.replay
    if imported is None or replay is None or not can_fork():
        return None
    stage, kind = explanation.stage or "", explanation.kind

    def fails(segment: Segment) -> bool:
        try:
            in_child(lambda: replay(segment.alone(), stage), timeout=_SEARCH_SECONDS)
        except InternalError as error:
            return (error.stage, error.kind) == (stage, kind)
        except ChildDiedError as error:
            return ended(error.status) == kind
        except Exception:
            return False
        return False

    found = narrowed(whole(imported.module), fails, _SEARCH_SECONDS)
    return found if found.stop > found.start else None


def _function(explanation: InternalError, circumstances: Search, module: Any) -> str | None:
    """The first of a module's TensorIR functions that fails in the same way by itself, in a child of this process."""
    build = circumstances.build.get(explanation.stage or "")
    if build is None or not isinstance(module, tvm.IRModule) or not can_fork():
        return None
    functions = [item for item in module.functions_items() if isinstance(item[1], tirx.PrimFunc)]
    with mmap.mmap(-1, mmap.PAGESIZE) as tried:  # shared with the child, which may not live to tell

        def build_each() -> None:
            for position, (variable, function) in enumerate(functions):
                tried[:4] = position.to_bytes(4, "little")
                build(tvm.IRModule({variable: function}))
            raise LookupError

        kind: str | None = None
        try:
            in_child(build_each, timeout=_SEARCH_SECONDS)
        except (ChildDiedError, RaisedInChildError) as error:
            kind = kind_of(error)
        name = functions[int.from_bytes(tried[:4], "little")][0].name_hint
        return str(name) if kind == explanation.kind else None


def _nodes(segment: Segment, sources: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes that a segment's variables were bound for.

    A variable that no node is known of was made on the way to the next one.
    """
    names = [variable.name_hint for variable in segment.variables]
    return tuple(dict.fromkeys(sources[name] for name in names if name in sources))
