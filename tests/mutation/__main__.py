"""``python -m tests.mutation``: plants every fault, and says which tests find it.

Results go to ``docs/conformance/mutation.json``.

``--only TEXT`` takes those whose name or file holds the text, and replaces their part of the file alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from .mutant import ROOT
from .mutants import MUTANTS
from .runner import Outcome, copied_project, passes_untouched, run

RESULTS = ROOT / "docs" / "conformance" / "mutation.json"


def main() -> int:
    """1 where a fault was not found, or could not be looked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", default="", help="a part of the names or files of the mutants to run")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests on the code as it is first")
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if arguments.only in m.name or arguments.only in m.file]
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.file}: {mutant.name}")
        return 0
    earlier = json.loads(RESULTS.read_text()) if RESULTS.exists() and len(chosen) < len(MUTANTS) else {"mutants": []}
    found = {entry["name"]: entry for entry in earlier["mutants"]}
    with copied_project() as copy, tempfile.TemporaryDirectory(prefix="tkc-mutation-cache-") as cache:
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        if not arguments.unchecked and not passes_untouched(tests, copy, Path(cache)):
            print("some of the tests fail on the code as it is, and can find nothing", file=sys.stderr)
            return 1
        for number, mutant in enumerate(chosen, 1):
            outcome = run(mutant, copy, Path(cache))
            found[mutant.name] = asdict(outcome)
            _write(found)
            print(f"{number:3}/{len(chosen)} {outcome.status:9} {outcome.seconds:6.1f} s  {mutant.name}", flush=True)
    return _summary([Outcome(**found[mutant.name]) for mutant in chosen])


def _write(found: dict[str, dict[str, object]]) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    known = {mutant.name for mutant in MUTANTS}
    entries = [entry for name, entry in found.items() if name in known]
    killed = sum(entry["status"] == "killed" for entry in entries)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    content = {"commit": commit, "killed": killed, "of": len(MUTANTS), "mutants": entries}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")


def _summary(outcomes: list[Outcome]) -> int:
    missed = [outcome for outcome in outcomes if outcome.status != "killed"]
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} found")
    for outcome in missed:
        print(f"  {outcome.status}: {outcome.name} ({outcome.file})")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
