"""What the fuzzer found, as small as it could be made: each was wrong, crashed, hung or failed inside TKC once."""

from __future__ import annotations
