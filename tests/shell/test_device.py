"""The tests' device is like the real one: what Buildroot's BusyBox lacks is not there (B75)."""

import pytest

ABSENT = "stat timeout fsync nc pgrep pkill tac logread inotifyd rev shuf comm split taskset ionice ed unshare".split()
NEEDED = "awk cat chgrp chmod date dd df flock grep ls mkdir mv rm sleep sync tail tr".split()


@pytest.mark.parametrize("name", ABSENT)
def test_what_the_device_lacks_fails_here(board, name):
    for script in ('%s --help' % name, 'env %s --help' % name, 'echo x | xargs %s' % name, 'command -v %s' % name):
        result = board.sh(script)
        assert result.code in (1, 127), (script, result)
        assert "Usage" not in result.err and "BusyBox" not in result.err + result.out, (script, result)


@pytest.mark.parametrize("name", NEEDED)
def test_what_the_wrapper_uses_is_here(board, name):
    assert board.sh("command -v %s" % name).code == 0


def test_a_script_that_uses_stat_fails(board):
    result = board.sh("set -e; stat / >/dev/null; echo reached")
    assert result.code == 127 and "reached" not in result.out


def test_a_script_that_uses_timeout_fails(board):
    result = board.sh("timeout 5 true && echo reached")
    assert result.code == 127 and "reached" not in result.out


def test_the_shell_is_ash_and_counts_microseconds(board):
    assert board.sh("echo $EPOCHREALTIME").out.strip().replace(".", "").isdigit()


def test_the_rest_of_busybox_still_works(board):
    result = board.sh("printf 'b\\na\\n' | sort | tr a-z A-Z; echo x | awk '{print NF}';"
                      "start-stop-daemon --help 2>&1 | grep -c -- -p")
    assert result.out.split()[:3] == ["A", "B", "1"] and int(result.out.split()[3]) > 0
