"""Types of what TKC decorates with TileLang, which carries none; all else is ``Any``. Only mypy reads this folder."""

from typing import Any

def __getattr__(name: str) -> Any: ...
