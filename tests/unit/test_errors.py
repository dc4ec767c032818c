"""Errors print as one line and carry the exit code of who acts next."""

import errno

import pytest

from edgeq import errors


def test_an_error_is_one_line_of_what_which_why_and_remedy():
    assert str(errors.StoreDown("claim", "a", "broken", "wait")) == "claim: a: broken: wait"
    assert str(errors.NotFound("kick", "a", "is not dead")) == "kick: a: is not dead"


@pytest.mark.parametrize("number, kind, code", (
    (errno.ENOSPC, errors.StoreFull, 75), (errno.EDQUOT, errors.StoreFull, 75), (errno.EROFS, errors.StoreDown, 74),
    (errno.EACCES, errors.NotPermitted, 77), (errno.EPERM, errors.NotPermitted, 77), (errno.EMFILE, errors.Busy, 75),
    (errno.EIO, errors.StoreDown, 74)))
def test_an_oserror_says_what_to_do(number, kind, code):
    error = errors.from_os("enqueue", "/spool", OSError(number, "why it is"))
    assert type(error) is kind and error.exit_code == code
    assert "why it is (errno %d)" % number in str(error) and error.todo


def test_the_numbers_are_the_kernels():
    names = [name for name in vars(errors) if name.startswith("E") and name.isupper()]
    assert len(names) > 15 and {name: getattr(errors, name) for name in names} == {name: getattr(errno, name) for name in names}
