"""The fix of a check, where it is said to be sure and can be applied, mends the check's bad program."""

import pytest

from benchmarks.diagnose_fixes import contained, mended, ran, sure_fix
from pullback.diagnose.check import checks
from tests.diagnose.harness import body, codes

# Their right programs keep no gradient that could be compared: that the mended program runs is all that is asked.
ONLY_RUN: set[str] = set()

# Their mended programs are right, but are not to have the gradients of the right program that the check shows: why.
OTHER_GRADIENTS: dict[str, str] = {}


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.code)
def test_a_sure_fix_mends(check, tmp_path):
    bad, good = tmp_path.resolve() / "bad.py", tmp_path.resolve() / "good.py"
    bad.write_text(body(check.bad))
    diagnosis = sure_fix(ran(bad, check.level).report, [check.code])
    if diagnosis is None:
        return
    after = mended(diagnosis, bad)
    result = ran(after, check.level)
    assert not result.error, after.read_text()
    assert check.code not in codes(result.report), after.read_text()
    if check.code in OTHER_GRADIENTS:
        return
    good.write_text(body(check.good))
    wanted = ran(good, None).gradients
    assert (not wanted) == (check.code in ONLY_RUN), list(wanted)
    assert contained(wanted, result.gradients), (after.read_text(), wanted, result.gradients)
