"""`top` on a terminal of 80x24, driven through tmux as a technician would; and what it leaves behind."""

import os
import shlex
import signal
import subprocess
import sys

import pytest

from tests.console.console import COLUMNS, wait_for

ROWS = 24
SHELL = ["env", "-i", "PATH=/usr/bin:/bin", "TERM=vt100", "sh"]


class Terminal:
    """A tmux session of its own server: `screen` is what stands there, `press` is the keyboard."""

    def __init__(self, console):
        self.console, self.socket = console, console.root / "tmux"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), *SHELL)
        self.press("PS1='ready> '; unset HISTFILE", "Enter")
        wait_for(lambda: self.screen().rstrip().endswith("ready>"), "a shell")
        self.press("clear", "Enter")
        self.before = self.stty()

    def tmux(self, *words):
        return subprocess.run(["tmux", "-S", str(self.socket), *words], check=True, capture_output=True, text=True).stdout

    def press(self, *keys):
        self.tmux("send-keys", *keys)

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def tty(self):
        return self.tmux("list-panes", "-F", "#{pane_tty}").strip()

    def stty(self):
        return subprocess.run(["stty", "-F", self.tty(), "-a"], check=True, capture_output=True, text=True).stdout

    def start_top(self, *words, term="vt100"):
        environ = " ".join("%s=%s" % (key, shlex.quote(value)) for key, value in self.console.env(TERM=term).items())
        script = self.console.root / "run-top"
        script.write_text("%s exec %s -m edgeq top %s\n" % (environ, sys.executable, " ".join(words)))
        self.press("sh %s; echo left $?" % script, "Enter")
        self.sees("q quit")

    def sees(self, text):
        try:
            return wait_for(lambda: text in self.screen() and self.screen(), text)
        except AssertionError:
            raise AssertionError("%r never came:\n%s" % (text, self.screen())) from None

    def kill(self):
        subprocess.run(["tmux", "-S", str(self.socket), "kill-server"], capture_output=True)


@pytest.fixture
def terminal(console):
    terminal = Terminal(console)
    yield terminal
    terminal.kill()


def top_pid(console):
    found = subprocess.run(["pgrep", "-f", "--", "-m edgeq top"], capture_output=True, text=True).stdout.split()
    for pid in found:
        with open("/proc/%s/environ" % pid, "rb") as file:
            if str(console.conf).encode() in file.read():
                return int(pid)


def test_it_shows_what_goes_on_and_leaves_nothing_behind(console, terminal):
    console.gate("slow")
    console.handler("bad", "echo no route to host; exit 65")
    console.handler("good", ":")
    console.start()
    running = console.ok("enqueue", "slow", "--id", "x" * 64)
    wait_for(lambda: console.began("slow"), "it runs")
    for _ in range(3):
        console.ok("enqueue", "good")
    console.ok("enqueue", "bad")
    wait_for(lambda: console.names("dlq"), "one is dead")
    terminal.start_top("--interval", "1")
    screen = terminal.sees("dead 1")
    assert "worker up" in screen and "degraded: dead" in screen and "running 1" in screen
    assert "x" * 32 + "~" in screen and "slow" in screen, "what runs"
    assert "exit 65: no~" in screen or "exit 65: no " in screen
    assert "done/min [" in screen and "fail/min [" in screen
    assert all(len(line) <= COLUMNS for line in screen.splitlines()) and screen.isascii()
    terminal.press("q")
    terminal.sees("left 0")
    assert terminal.stty() == terminal.before
    console.open_gate("slow")
    console.ok("wait", running)


def test_the_keys_pause_resume_and_kick(console, terminal):
    console.handler("bad", "exit 65")
    console.start()
    console.ok("enqueue", "bad")
    wait_for(lambda: console.names("dlq"), "one is dead")
    terminal.start_top("--interval", "1")
    terminal.press("p")
    terminal.sees("pause everything for 1 h? y/n")
    terminal.press("n")
    terminal.sees("not done")
    assert not (console.q / "paused").exists()
    terminal.press("p")
    terminal.sees("y/n")
    terminal.press("y")
    wait_for(lambda: "paused: everything" in terminal.screen(), "the pause on the screen")
    assert (console.q / "paused").exists()
    terminal.sees("dead 1")
    terminal.press("k")
    terminal.sees("kick 1 dead letters? y/n")
    terminal.press("y")
    terminal.sees("ready 1")
    assert console.names("dlq") == [] and len(console.names("incoming")) == 1
    terminal.press("r")
    terminal.sees("paused: no")
    wait_for(lambda: console.names("dlq"), "it died again")
    terminal.press("q")
    terminal.sees("left 0")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_leaves_the_terminal_as_it_was(console, terminal, number):
    terminal.start_top("--interval", "3600")
    assert terminal.stty() != terminal.before
    pid = wait_for(lambda: top_pid(console), "its pid")
    os.kill(pid, number)
    terminal.sees("left 0")
    assert terminal.stty() == terminal.before


def test_ctrl_c_too(console, terminal):
    terminal.start_top("--interval", "3600")
    terminal.press("C-c")
    terminal.sees("left 0")
    assert terminal.stty() == terminal.before


def test_a_dumb_terminal_gets_no_sequence(console, terminal):
    console.ok("enqueue", "t")
    log = console.root / "raw"
    terminal.tmux("pipe-pane", "-o", "cat >%s" % log)
    terminal.start_top(term="dumb")
    terminal.press("q")
    terminal.sees("left 0")
    shown = log.read_bytes().partition(b"run-top")[2].partition(b"left 0")[0]
    assert b"TYPE" in shown and b"\x1b" not in shown.partition(b"\n")[2]


def test_without_a_terminal_it_is_one_frame(console):
    console.ok("enqueue", "t")
    frame = console.ok("top")
    assert frame.splitlines()[0].startswith("edgeq default") and "BROKEN: down" in frame
    assert len(frame.splitlines()) < ROWS and all(len(line) < COLUMNS for line in frame.splitlines())


def test_forty_types_keep_to_the_screen(console):
    for n in range(40):
        console.ok("enqueue", "type%02d" % n + "y" * 50, "--fast", by="wrapper")
    frame = console.ok("top").splitlines()
    assert len(frame) < ROWS and all(len(line) < COLUMNS for line in frame)
    assert any(line.startswith("... ") and "types more" in line for line in frame)
