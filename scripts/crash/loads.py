"""The programs that run while something is killed or cut: load-*.py, load-*.sh and what soak.py adds."""

import os
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, os.pardir, "walk"))
from walk import SHALE  # noqa: E402


class Load:
    """One program, again and again, in a directory of its own on the volume."""

    def __init__(self, name, way, mount, host, environment=None):
        self.name, self.way, self.environment = name, way, dict(environment or {})
        if way == "mount":
            # Linux does not tell the mount of `sync -f`.
            self.environment["SYNC_WITH"] = f"{SHALE} sync {mount}"
        self.title = f"{name}, {'shale run' if way == 'run' else 'mount'}"
        self.directory = os.path.join(mount, f"{way}-{name}")
        self.host = os.path.join(host, f"{way}-{name}")
        self.process = None
        self.ended_early = 0
        os.mkdir(self.host)

    def words(self, verb):
        if self.name == "churn":
            program = ["python3", os.path.join(HERE, "soak.py"), f"churn-{verb}"]
        else:
            kind, interpreter = ("sh", []) if self.name in ("tar", "git") else ("py", ["python3"])
            program = interpreter + [os.path.join(HERE, f"load-{self.name}.{kind}"), verb]
        return ([SHALE, "run", "--"] if self.way == "run" else []) + program + [self.directory, self.host]

    def start(self):
        os.makedirs(self.directory, exist_ok=True)
        self.output = open(os.path.join(self.host, "output"), "ab")
        environment = dict(os.environ, JOURNAL="WAL" if self.way == "run" else "DELETE", **self.environment)
        self.process = subprocess.Popen(
            self.words("run"), stdout=self.output, stderr=self.output, start_new_session=True, env=environment
        )

    def pid(self):
        """The program itself: `shale run` has become it."""
        return self.process.pid

    def kill(self):
        """kill -9 of it and of what it has started; does not wait."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def kill_and_start(self):
        self.kill()
        self.process.wait()
        self.start()

    def lives(self):
        return self.process.poll() is None

    def stop(self):
        with open(os.path.join(self.host, "stop"), "w", encoding="ascii"):
            pass
        try:
            return self.process.wait(180)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait()

    def logged(self):
        """Lines that it has logged."""
        path = os.path.join(self.host, f"{self.name}.log")
        if not os.path.exists(path):
            return 0
        with open(path, "rb") as file:
            return file.read().count(b"\n")

    def last_words(self):
        with open(os.path.join(self.host, "output"), "rb") as file:
            return file.read()[-300:].decode(errors="replace").strip()

    def verify(self):
        done = subprocess.run(self.words("verify"), capture_output=True, text=True, timeout=900, check=False)
        return done.returncode == 0, (done.stdout + done.stderr).strip()[-300:]
