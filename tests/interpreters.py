"""Processes of Python that start at once: torch is imported in one process, from which the others are forked.

Importing torch takes two seconds of a core, and tests start a hundred processes. `Interpreters.popen` stands in for
`subprocess.Popen` where the command is `python [-P] -m MODULE ...` or `python SCRIPT.py ...`: the child has the files,
folder, environment and arguments that it would have, and Ctrl-C reaches it even where that is ignored around it, as in
background jobs. Where `ADDRESS` is in its environment, its own children start that way too. Another hash seed and
`preexec_fn` need a process of one's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

ADDRESS = "FEDSTRATA_INTERPRETERS"
READY = (  # what takes long to import
    "fedstrata.runs.progress",
    "fedstrata.cli.run",
    "fedstrata.engines.local.engine",
    "fedstrata.runs.compare.pool",
    "fedstrata.privacy.enclave.service",
    "sklearn.datasets",
    "torch._dynamo",  # when gradients are first mapped over clients
)
ABOVE = 512  # file descriptors wait here until they are put in their places
KNOWN = {"stdin", "stdout", "stderr", "cwd", "env", "pass_fds", "text", "process_group"}  # of the arguments of Popen


class Process:
    """What `subprocess.Popen` gives, as far as it is used."""

    def __init__(self, args, line, stdout, stderr):
        self.args, self._line, self.stdout, self.stderr = args, line, stdout, stderr
        self.stdin, self.returncode, self.pid = None, None, line.recv()

    def poll(self):
        if self.returncode is None and self._line.poll():
            self.returncode = self._line.recv()
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None and not self._line.poll(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.poll()

    def communicate(self, input=None, timeout=None):
        assert input is None, "nothing is written to these processes"
        told = {}
        pipes = {name: pipe for name in ("stdout", "stderr") if (pipe := getattr(self, name)) is not None}
        readers = [threading.Thread(target=lambda n=n, p=p: told.update({n: p.read()})) for n, p in pipes.items()]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(timeout)
        self._close()
        return told.get("stdout"), told.get("stderr")

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def _close(self):
        for pipe in filter(None, (self.stdout, self.stderr)):
            pipe.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._close()
        self.wait()


class Interpreters:
    """Starts processes from the one that listens at an address."""

    def __init__(self, address):
        self.address, self._popen = address, subprocess.Popen

    def popen(self, args, **how):
        """Start a process: from the one that is ready if that can be, otherwise as always."""
        env = dict(os.environ if how.get("env") is None else how["env"])
        seeded = env.get("PYTHONHASHSEED") != os.environ.get("PYTHONHASHSEED")
        known = "-m" in args[1:3] or str(args[1]).endswith(".py")
        if args[0] != sys.executable or not known or not set(how) <= KNOWN or seeded:
            return self._popen(args, **how)
        line, given, ours = socket.socket(socket.AF_UNIX), [], {}
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            asked = how.get(name)
            if asked is None:
                given.append(os.dup(number))
            elif asked == subprocess.DEVNULL:
                given.append(os.open(os.devnull, os.O_RDWR))
            elif asked == subprocess.PIPE:
                read, write = os.pipe()
                given.append(write)
                ours[name] = os.fdopen(read, "r" if how.get("text") else "rb")
            else:
                given.append(os.dup(asked if isinstance(asked, int) else asked.fileno()))
        line.connect(self.address)
        more = tuple(how.get("pass_fds", ()))
        socket.send_fds(line, [b"!"], [*given, *more])
        for file in given:
            os.close(file)
        connection = Connection(line.detach())
        folder, group = os.path.abspath(how.get("cwd") or "."), how.get("process_group")
        connection.send((list(args[1:]), folder, env, (0, 1, 2, *more), group))
        return Process(args, connection, ours.get("stdout"), ours.get("stderr"))


@contextlib.contextmanager
def ready():
    """Start the process that others are forked from; it ends with this one."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder, "socket"))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        first = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
        )
        listener.close()
        try:
            yield Interpreters(address)
        finally:
            first.stdin.close()
            first.wait()


def main(listener: socket.socket) -> None:
    """Fork whenever asked to, until standard input is closed."""
    for name in READY:
        import_module(name)
    gc.freeze()  # what is there already is neither looked at nor copied in children
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            bear(line)
        line.close()
    os._exit(0)


def bear(line: socket.socket) -> None:
    """Start a child, and tell its number and how it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(line, 1, 64)
    told = Connection(line.detach())
    args, folder, env, places, group = told.recv()
    child = os.fork()
    if child == 0:
        told.close()
        if group is not None:
            os.setpgid(0, group)
        live(args, folder, env, dict(zip(places, files, strict=True)))
    for file in files:
        os.close(file)
    with contextlib.suppress(ConnectionError):  # nobody wants to know
        told.send(child)
        told.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)


def live(args: list[str], folder: str, env: dict[str, str], files: dict[int, int]) -> None:
    """Be a fresh interpreter that was started with these arguments."""
    waiting = {place: fcntl.fcntl(file, fcntl.F_DUPFD, ABOVE) for place, file in files.items()}
    os.closerange(3, ABOVE)
    for place, file in waiting.items():
        os.dup2(file, place)
        os.close(file)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    if ADDRESS in env:
        subprocess.Popen = Interpreters(env[ADDRESS]).popen
    script = args[0].endswith(".py")
    first = [] if args[0] == "-P" else [str(Path(args[0]).absolute().parent) if script else folder]
    sys.path[:0] = first + [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv = list(args) if script else args[args.index("-m") + 1 :]
    os._exit(run(sys.argv[0], script))  # putting a thousand modules away would take longer than most tests


def run(name: str, script: bool) -> int:
    """Run a module or a script as the interpreter does; give the exit code."""
    code = 1
    try:
        if script:
            run_script(name)
        else:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def run_script(name: str) -> None:
    """Run a file as `__main__`, where pickle and others look for what it defines."""
    module = ModuleType("__main__")
    module.__file__ = name
    sys.modules["__main__"] = module
    exec(compile(Path(name).read_text(), name, "exec"), vars(module))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
