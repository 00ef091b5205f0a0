#!/usr/bin/env python3
"""Runs what docs/GUIDE.md and README.md tell users to do, and compares what is printed with what they say is printed.

    scripts/guide-test.py                      all sections of both
    scripts/guide-test.py "A disk is dying"    only sections with these words in their heading
    scripts/guide-test.py --show …             also what was printed, as it stands in a document

Each section (a heading of level 2 to 4) has a machine of its own: a mount and a process namespace with an empty /srv, /mnt, /pmem, /run,
/etc/shale, /dev/shm and /backup of memory. When it ends all of it is gone, whatever happened. What counts in a document:

    ```console            $ begins a command, `\\` at the end of a line continues it; what follows is what it prints, on both
    $ shale sync /mnt     outputs. `…` stands for anything within a line, a line of it alone for any lines. The exit code is 0
    $ false               unless a line says another one.
    [exit code 1]
    ```
    <!-- test             Is not shown to readers: a script that sets a stage or breaks something. It has to succeed.
    fill 5
    -->

Needs root, /dev/fuse and loop devices. SHALE and SHALE_PRELOAD are the program and the library (default: this tree's release build); JOBS=3
sections run at a time. The last line is "N passed, N failed"."""

import concurrent.futures
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILT = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release")
SHALE = os.environ.get("SHALE", os.path.join(BUILT, "shale"))
PRELOAD = os.environ.get("SHALE_PRELOAD", os.path.join(os.path.dirname(SHALE), "libshale_preload.so"))
DOCUMENTS = ("docs/GUIDE.md", "README.md")
COMMAND_SECONDS = 100
SECTION_SECONDS = 300

# What scripts between `<!-- test` and `-->` can say besides commands.
HELPERS = r"""
mib() { head -c "$1M" /dev/urandom; }
fill() { local n; for n in $(seq "$1"); do mib "${2:-4}" >"/mnt/data/file-$n"; done; }                  # fill COUNT [MIB]
fill_up() { local n; for n in $(seq 100); do mib 4 2>/dev/null >"/mnt/data/more-$n" || return 0; done; return 1; }
process() { shale status /mnt/data --json | sed -nE "s/.*\"$1_pid\": *([0-9]+).*/\1/p" | head -n 1; }   # process daemon|supervisor
background() { setsid "$@" </dev/null >/dev/null 2>&1 & }
loop() { losetup --find --show "$1" >>/run/loops && ln -s "$(tail -n 1 /run/loops)" "$2"; }             # loop IMAGE LINK
cut_short() { truncate -s "$2" "$1"; losetup -c "$(readlink "$3")"; echo 3 >/proc/sys/vm/drop_caches; } # cut_short IMAGE SIZE LINK
power_cut() { # all processes end at once, and what was in memory is gone; NVM stays
    local both; both="$(process supervisor) $(process daemon)"
    kill -9 $both; umount -l /mnt/data
    while kill -0 $both 2>/dev/null; do sleep 0.02; done
    rm -rf /dev/shm/shale-*
}
until_true() { local n; for n in $(seq 200); do "$@" >/dev/null 2>&1 && return; sleep 0.05; done; return 1; }
"""


class Step:
    """A command of a document, or a script that readers do not see."""

    def __init__(self, line, text, shown):
        self.line, self.text, self.shown, self.wanted = line, text, shown, []

    def code(self):
        """The exit code that is wanted, and the lines before it."""
        last = re.fullmatch(r"\[exit code (\d+)\]", self.wanted[-1]) if self.wanted else None
        return (int(last[1]), self.wanted[:-1]) if last else (0, self.wanted)


def sections(text):
    """Heading and steps of each section that has steps."""
    found, kind, open_command = [("", [])], "", False
    for number, line in enumerate(text.splitlines(), 1):
        steps = found[-1][1]
        if kind == "console":
            if line == "```":
                kind = ""
            elif open_command:
                steps[-1].text += "\n" + line
            elif line.startswith("$ "):
                steps.append(Step(number, line[2:], True))
            elif steps and steps[-1].shown:
                steps[-1].wanted.append(line)
            if kind:
                open_command = (line.startswith("$ ") or open_command) and line.endswith("\\")
        elif kind == "test":
            if line == "-->":
                kind = ""
            else:
                steps[-1].text += line + "\n"
        elif kind == "other":
            kind = "" if line == "```" else kind
        elif line == "```console":
            kind = "console"
        elif line.startswith("```"):
            kind = "other"
        elif line == "<!-- test":
            kind = "test"
            steps.append(Step(number, "", False))
        elif re.match("#{2,4} ", line):
            found.append((line.lstrip("# "), []))
    return [(heading, steps) for heading, steps in found if steps]


def is_as_wanted(wanted, printed):
    """Whether what was printed is what was wanted, with its `…`."""
    if not wanted:
        return not printed
    first, rest = wanted[0], wanted[1:]
    if first == "…":
        return any(is_as_wanted(rest, printed[n:]) for n in range(len(printed) + 1))
    pattern = ".*".join(re.escape(part) for part in first.rstrip().split("…"))
    return bool(printed) and re.fullmatch(pattern, printed[0].rstrip()) is not None and is_as_wanted(rest, printed[1:])


def mount(what, where, kind="", flags=0, data=""):
    libc = ctypes.CDLL(None, use_errno=True)
    words = [word.encode() if word else None for word in (what, where, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), where)


def enter_machine(root):
    """Makes a tree of its own at `root` and enters it: the machine's, but for what a section changes."""
    bind, recursive = 4096, 16384
    mount("guide", root, "tmpfs", data="size=1G,mode=755")
    own = {"etc", "mnt", "srv", "run", "tmp", "proc", "pmem", "backup", "dev", "lost+found"}
    for name in os.listdir("/"):
        there, here = f"/{name}", f"{root}/{name}"
        if os.path.islink(there):
            os.symlink(os.readlink(there), here)
        elif os.path.isdir(there) and name not in own:
            os.mkdir(here)
            mount(there, here, flags=bind | recursive)
    shutil.copytree("/etc", f"{root}/etc", symlinks=True)
    for name in ("mnt/data", "srv", "run", "tmp", "proc", "pmem", "backup", "dev", "shale", "etc/shale"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    os.chmod(f"{root}/tmp", 0o1777)
    mount("/dev", f"{root}/dev", flags=bind | recursive)
    mount("shm", f"{root}/dev/shm", "tmpfs", data="mode=1777")
    mount("proc", f"{root}/proc", "proc")
    for program in (SHALE, PRELOAD):
        shutil.copy(program, f"{root}/shale")
    os.chroot(root)
    os.chdir("/")


def execute(text, shown):
    """Runs a script; gives its exit code and the lines that it prints."""
    env = {
        "PATH": "/shale:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/tmp",
        "LC_ALL": "C.UTF-8",
        "SHALE_PRELOAD": "/shale/libshale_preload.so",
    }
    words = ["bash", "-uc" if shown else "-euc", f"{HELPERS}\n{text}"]
    # A file and not a pipe: programs that go on in the background would keep that open.
    with tempfile.TemporaryFile() as out:
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
        ) as process:
            try:
                code = process.wait(COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = f"not ended after {COMMAND_SECONDS} s"
        out.seek(0)
        return code, out.read().decode(errors="replace").splitlines()


def inside(root, document, heading, steps, show):
    """Runs a section in this process's namespaces; gives its counts."""
    enter_machine(root)
    good = bad = 0
    try:
        for step in steps:
            begun = time.monotonic()
            code, printed = execute(step.text, step.shown)
            wanted_code, wanted = step.code()
            right = code == wanted_code and (not step.shown or is_as_wanted(wanted, printed))
            good, bad = good + right, bad + (not right)
            took = time.monotonic() - begun
            if show:
                ends = "" if code == 0 else f"\n[exit code {code}]"
                print("\n".join([f"$ {step.text}" if step.shown else f"(test) {step.text.strip()}", *printed]) + ends)
            if show and took > 1:
                print(f"        ({took:.1f} s)")
            if not right:
                print(f"FAILED  {document}:{step.line}: {heading}: {step.text.strip()}")
                print("\n".join([f"        exit code {code}, and printed:", *(f"        {line}" for line in printed[:40])]))
                print("\n".join(["        the document says:", *(f"        {line}" for line in step.wanted)]))
                if not step.shown:
                    print("        what comes after it is not run: its stage is not set")
                    break
    finally:
        if os.path.exists("/run/loops"):
            with open("/run/loops", encoding="ascii") as loops:
                for name in loops.read().split():
                    subprocess.run(["losetup", "-d", name], check=False, capture_output=True)
    print(f"{good} passed, {bad} failed")
    return bad == 0


def outside(document, number, heading, show):
    """Runs a section in namespaces of its own; gives its counts, what it printed, and the time."""
    begun = time.monotonic()
    # The shell is the first process there, and takes the ends of those whose parents have gone.
    script = 'python3 "$@"; exit $?'
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "bash", "-c", script, "bash"]
    root = tempfile.mkdtemp(prefix="shale-guide-")
    words += [os.path.abspath(__file__), "--inside", root, document, str(number)] + ["--show"] * show
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECTION_SECONDS, check=False)
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        said = f"{(error.stdout or b'').decode()}\n{heading}: not ended after {SECTION_SECONDS} s"
    # What was mounted there has gone with the namespace.
    os.rmdir(root)
    count = re.search(r"^(\d+) passed, (\d+) failed\n*\Z", said, re.M)
    # A section that ends before its count is a failure.
    good, bad = (int(count[1]), int(count[2])) if count else (0, 1)
    return good, bad, said[: count.start()] if count else said, time.monotonic() - begun


# A document with a mistake of each kind, which the comparison has to find; and how many steps are right.
MISTAKEN = """
## Mistakes
```console
$ echo as said
as said
$ echo one; echo two; false
o…
[exit code 1]
$ echo other
another
$ echo more; echo lines
more
$ echo fewer
fewer
lines
$ false
$ true
[exit code 1]
$ echo anything
…
```
<!-- test
false
-->
"""
MISTAKEN_COUNTS = "2 passed, 7 failed"


def show_that_it_fails():
    """A guide that is wrong has to fail, in each of the ways in which it can be wrong."""
    good = bad = 0
    for _, steps in sections(MISTAKEN):
        for step in steps:
            code, printed = execute(step.text, step.shown)
            wanted_code, wanted = step.code()
            right = code == wanted_code and (not step.shown or is_as_wanted(wanted, printed))
            good, bad = good + right, bad + (not right)
    counts = f"{good} passed, {bad} failed"
    if counts != MISTAKEN_COUNTS:
        print(f"FAILED  a guide with mistakes: {counts}, expected {MISTAKEN_COUNTS}")
    return counts == MISTAKEN_COUNTS


def read(document):
    with open(os.path.join(ROOT, document), encoding="utf8") as file:
        return sections(file.read())


def main(words):
    show = "--show" in words
    words = [word for word in words if word != "--show"]
    if words[:1] == ["--inside"]:
        root, document, number = words[1:]
        heading, steps = read(document)[int(number)]
        return inside(root, document, heading, steps, show)
    missing = [program for program in (SHALE, PRELOAD) if not os.path.exists(program)]
    if missing or os.geteuid() != 0:
        print(f"guide: needs root, and {' and '.join(missing) or SHALE} (cargo build --release -p shale-cli -p shale-preload)")
        print("0 passed, 1 failed")
        return False
    good, bad = (1, 0) if show_that_it_fails() else (0, 1)
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "3"))) as pool:
        runs = []
        for document in DOCUMENTS:
            for number, (heading, steps) in enumerate(read(document)):
                if not words or any(word.lower() in heading.lower() for word in words):
                    runs.append((document, heading, pool.submit(outside, document, number, heading, show)))
        for document, heading, run in runs:
            passed, failed, said, took = run.result()
            good, bad = good + passed, bad + failed
            print(said, end="")
            print(f"{'ok  ' if failed == 0 else 'BAD '} {took:5.1f} s  {passed:3}  {document}: {heading}", flush=True)
    print(f"{good} passed, {bad} failed")
    return bad == 0 and len(runs) > 0


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
