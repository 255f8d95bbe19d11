"""The fix of a check, where it is said to be sure and can be applied, mends the check's bad program."""

import pytest
from benchmarks.diagnose_fixes import contained, mended, sure_fix
from benchmarks.diagnose_runs import ran

from pullback.diagnose.check import checks
from tests.diagnose.harness import body, codes

# Their right programs, or the mended ones, keep no gradient that could be compared: that they run is all that is asked.
# fmt: off
ONLY_RUN = {
    "PB118", "PB120", "PB216", "PB307", "PB309", "PB420", "PB422", "PB433", "PB434", "PB435", "PB501", "PB502",
    "PB503", "PB504", "PB505", "PB509", "PB515", "PB516", "PB601", "PB602", "PB603", "PB607", "PB608", "PB610",
    "PB612", "PB620", "PB621", "PB622", "PB623", "PB624", "PB626", "PB630", "PB636", "PB637", "PB639", "PB802",
    "PB803", "PB804", "PB805", "PB806", "PB809", "PB811", "PB812", "PB813", "PB814", "PB817", "PB818", "PB819",
    "PB821", "PB826", "PB831", "PB832", "PB833", "PB836", "PB837", "PB842", "PB844", "PB845", "PB846", "PB850",
    "PB924", "PBA101", "PBA102", "PBA119", "PBA124", "PBA164", "PBA350", "PBA503",
}
# fmt: on

# Their mended programs are right, but are not to have the gradients of the right program that the check shows: why.
OTHER_GRADIENTS = {
    "PB103": "the sum of the losses there, the mean here",
    "PB305": "the value is detached before it is stored there, at the end of the turn here",
    "PB407": "it also clears the gradients there, which is another fault of the program",
    "PB611": "the layer that is not used is left out there, and draws no numbers",
    "PB851": "another point there",
    "PB905": "the unused output is used there",
    "PB908": "both layers are used there",
    "PBA507": "a second checkpoint, which draws nothing, belongs to the program there",
    "PBA161": "another program",
    "PBA162": "another program",
    "PBA305": "the sigmoid before a loss of logits, which is another fault of the program, is left out there",
    "PBA518": "one more term there",
    "PBA903": "the clamp has its gradient there",
}


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.code)
def test_a_sure_fix_mends(check, tmp_path):
    bad, good = (tmp_path.resolve() / name for name in ("bad.py", "good.py"))
    bad.write_text(body(check.bad))
    diagnosis = sure_fix(ran(bad, check.level).report, [check.code])
    if diagnosis is None:
        return
    after = mended(diagnosis, bad)
    result = ran(after, check.level)
    assert not result.error, after.read_text()
    assert check.code not in codes(result.report), after.read_text()
    good.write_text(body(check.good))
    wanted = ran(good, None).gradients
    assert (not wanted or not result.gradients) == (check.code in ONLY_RUN), (list(wanted), list(result.gradients))
    same = check.code in ONLY_RUN or contained(wanted, result.gradients)
    assert same == (check.code not in OTHER_GRADIENTS), (after.read_text(), wanted, result.gradients)
