"""Types of what TKC derives from, decorates with and asks of TVM, which carries none; all else is ``Any``.

Only mypy reads this folder. A class that has a stub here is checked; what a stubbed module lacks is not.
"""

from typing import Any

def __getattr__(name: str) -> Any: ...
