"""Which branch of an If is compiled where a model can be compiled for but one of both."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Decisions:
    """For which branches a model is compiled, by the first output of the If, where it can be but for one of both."""

    taken: dict[str, bool] = field(default_factory=dict)

    def of(self, name: str) -> bool:
        """Whether the then-branch is taken. It is at first."""
        return self.taken.setdefault(name, True)

    def change(self) -> bool:
        """Decide otherwise, the last ones first; ``False`` where all that can be decided was."""
        while self.taken:
            name, then = self.taken.popitem()
            if then:
                self.taken[name] = False
                return True
        return False
