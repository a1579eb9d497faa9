"""Variables that are yes or no."""

import pytest

from rft.hooks.cpu_linear import SWITCH, rows_alone
from rft.options import remote_code
from rft.record.flags import flag

YES = ("1", "TRUE", "yes", "On")
NO = ("0", "False", "no", "OFF", "", None)


@pytest.mark.parametrize(("value", "wanted"), [(word, word in YES) for word in (*YES, *NO)])
def test_yes_and_no_in_every_spelling(monkeypatch, value, wanted):
    for name in ("RFT_FLAG", SWITCH, remote_code.VARIABLE):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert (flag("RFT_FLAG"), rows_alone(), remote_code.trusted()) == (wanted,) * 3


def test_anything_else_is_refused(monkeypatch):
    monkeypatch.setenv("RFT_FLAG", "perhaps")
    with pytest.raises(ValueError, match=r"found:  RFT_FLAG=perhaps\n  wanted: 1, .*\n  repair: .*unset RFT_FLAG"):
        flag("RFT_FLAG")
