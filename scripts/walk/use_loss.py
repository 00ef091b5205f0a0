"""Items 1 to 7 of the walk through what use has found: data lost or exposed."""

import glob
import os
import random
import re
import resource
import signal
import subprocess
import time

from use_tools import (
    NOBODY,
    RUN,
    SERVED,
    Place,
    apart,
    attempt,
    compiled,
    last,
    public_library,
    scratch,
    short,
    small_ext4,
    took,
)
from walk import MIB, SHALE, command

EXITS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int fd;
static pthread_key_t key;
static void put(const char *s, off_t at) {
    if (pwrite(fd, s, strlen(s), at) != (ssize_t)strlen(s)) perror(s);
}
static void at_exit(void) { put("at exit", 100); }
static void quickly(void) { put("at quick exit", 200); }
static void child_at_exit(void) {
    pid_t pid = fork();
    if (pid == 0) { put("child", 300); _exit(0); }
    waitpid(pid, NULL, 0);
    put("parent", 400);
}
static void of_thread(void *v) { put(v, 500); }
static void *thread(void *v) { pthread_setspecific(key, "destructor of a thread"); return v; }
static void *later(void *v) { usleep(100000); put("after pthread_exit of main", 600); return v; }
__attribute__((destructor)) static void at_end(void) { if (fd > 0) put("destructor", 700); }

int main(int argc, char **v) {
    const char *how = v[1];
    if (argc < 3) return 2;
    if (!strcmp(how, "stdio") || !strcmp(how, "_exit")) {
        FILE *f = fopen(v[2], "w");
        for (int i = 0; i < 200000; i++) fprintf(f, "line %06d\n", i);
        if (how[0] == '_') _exit(0);
        return 0;
    }
    fd = open(v[2], O_RDWR | O_CREAT, 0644);
    put("begun", 0);
    pthread_t t;
    if (!strcmp(how, "atexit")) atexit(at_exit);
    if (!strcmp(how, "fork")) atexit(child_at_exit);
    if (!strcmp(how, "quick_exit")) { at_quick_exit(quickly); quick_exit(0); }
    if (!strcmp(how, "thread")) {
        pthread_key_create(&key, of_thread);
        pthread_create(&t, NULL, thread, NULL);
        pthread_join(t, NULL);
    }
    if (!strcmp(how, "main-thread")) {
        pthread_create(&t, NULL, later, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(how, "dlclose") || !strcmp(how, "dlopen")) {
        void *lib = dlopen(v[3], RTLD_NOW);
        void (*begin)(int) = lib ? (void (*)(int))dlsym(lib, "begin") : NULL;
        if (!begin) { puts(dlerror()); return 3; }
        begin(fd);
        if (!strcmp(how, "dlclose")) dlclose(lib);
    }
    return 0;
}
"""

UNLOADED = r"""
#include <unistd.h>
static int fd;
void begin(int n) { fd = n; }
__attribute__((destructor)) static void at_end(void) {
    if (fd > 0 && pwrite(fd, "library", 7, 800) != 7) _exit(9);
}
"""

STATIC = r"""
#include <fstream>
#include <fcntl.h>
#include <unistd.h>
static std::ofstream stream;
static struct Last { int fd = -1; ~Last() { if (pwrite(fd, "static", 6, 900000) != 6) _exit(9); } } last_one;
int main(int, char **v) {
    stream.open(v[2]);
    last_one.fd = open(v[2], O_RDWR);
    for (int i = 0; i < 50000; i++) stream << "line " << i << "\n";
    return 0;
}
"""

WAYS = ("stdio", "_exit", "atexit", "fork", "quick_exit", "thread", "main-thread", "dlclose", "dlopen", "static")


def item_1(tally):
    """what libc and destructors write at exit, under shale run, compared with tmpfs"""
    with Place("exit", "64M") as v, scratch("exit") as tools:
        programs = {way: compiled(tools, "exits", EXITS) for way in WAYS}
        programs["static"] = compiled(tools, "static", STATIC, compiler="c++")
        library = compiled(tools, "unloaded.so", UNLOADED, "-shared", "-fPIC")
        v.up()
        for warm, env in (("as it is", {}), ("a client at once", SERVED)):
            for way in WAYS:
                names = [os.path.join(tools, f"out-{way}"), v.path(f"{way}-{len(env)}")]
                words = [programs[way], way]
                right = attempt(*words, names[0], library)
                found = attempt(*RUN, *words, names[1], library, env=env)
                content = []
                for name in names:
                    with open(name, "rb") as file:
                        content.append(file.read())
                same = content[0] == content[1] and found == right
                said = f"{len(content[1])} of {len(content[0])} bytes, exit code {found[0]}"
                if content[0] != content[1] and len(content[0]) == len(content[1]):
                    said += ", other bytes"
                tally.see(f"{way}, {warm}", same, f"{said}{'; ' if found[1] else ''}{short(found[1], 160)}")
        v.down()
        tally.see("fsck", "clean" in v.fsck(), last(v.fsck()))


CHANGES = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **v) {
    const char *how = v[1], *file = v[2];
    static char page[4096] __attribute__((aligned(4096)));
    if (argc < 3) return 2;
    memset(page, 'x', sizeof page);
    int done = -1, fd = open(file, O_RDWR | (!strcmp(how, "direct") ? O_DIRECT : 0));
    if (fd < 0) return perror(file), 1;
    struct stat s;
    fstat(fd, &s);
    off_t end = (s.st_size + 4095) & ~4095L;
    if (!strcmp(how, "write") || !strcmp(how, "direct")) done = pwrite(fd, page, 4096, end) == 4096 ? 0 : -1;
    if (!strcmp(how, "truncate")) done = ftruncate(fd, end + 4096);
    if (!strcmp(how, "path")) done = truncate(file, end + 4096);
    if (!strcmp(how, "allocate")) done = fallocate(fd, 0, end, 8192);
    if (!strcmp(how, "keep")) done = fallocate(fd, FALLOC_FL_KEEP_SIZE, end, 8192);
    if (!strcmp(how, "zero")) done = fallocate(fd, FALLOC_FL_ZERO_RANGE, end, 8192);
    if (!strcmp(how, "punch")) done = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, end - 4096, 4096);
    if (!strcmp(how, "mmap")) {
        char *m = mmap(NULL, s.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (m != MAP_FAILED) m[s.st_size - 1] ^= 0, m[s.st_size - 1] = 'x', done = msync(m, s.st_size, MS_SYNC);
    }
    if (done) printf("%s: %s\n", how, strerror(errno));
    return done != 0;
}
"""

CONTENT = ("write", "direct", "truncate", "path", "allocate", "keep", "zero", "punch", "mmap")


LOOK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
int main(int argc, char **v) {
    struct statx s;
    for (int n = 1; n < argc; n++)
        if (statx(AT_FDCWD, v[n], AT_STATX_DONT_SYNC, STATX_MODE, &s)) return perror(v[n]), 1;
        else printf("%04o\n", s.stx_mode & 07777);
    return 0;
}
"""


def item_2(tally):
    """set-user-ID and set-group-ID after a change by another user, in what the kernel has cached, beside ext4"""
    with scratch("rights") as tools, Place("rights", "64M", options=("--trust", "nobody")) as v:
        programs = compiled(tools, "changes", CHANGES), compiled(tools, "look", LOOK)
        env = public_library(tools)
        v.opened().up()
        with scratch("rights", "/var/tmp") as directory, small_ext4(directory) as ext4:
            os.chmod(ext4, 0o755)
            right = rights(ext4, NOBODY, env, *programs)
        for way, prefix in (("mount", NOBODY), ("shale run", (*RUN, *NOBODY))):
            directory = v.path(way.replace(" ", "-"))
            os.mkdir(directory)
            program = f"{directory}/prog"
            command("install", "-m", "755", "/bin/true", program)
            os.chmod(program, 0o4777)
            attempt(*prefix, "dd", "if=/usr/bin/id", f"of={program}", "conv=notrunc", env=env)
            _, said = attempt(*NOBODY, program)
            tally.see(
                f"{way}: nobody's dd into a program of mode 4777, run by nobody",
                "uid=65534" in said and "euid" not in said,
                said,
            )
            found = rights(directory, prefix, env, *programs)
            wrong = [f"{case}: {found[case]}, ext4 {right[case]}" for case in right if found[case] != right[case]]
            tally.see(
                f"{way}: {len(right)} changes by nobody, error, mode as cached, mode: not as ext4",
                not wrong,
                f"{len(wrong)} {wrong[:4] or ''}",
            )
        v.down()
        tally.see("fsck", "clean" in v.fsck(), last(v.fsck()))


def rights(directory, prefix, env, changes, look):
    """Changes programs as another user, each in one way. By case: the error, the mode as the kernel has it cached, the mode."""
    found = {}
    for mode in (0o4777, 0o2777, 0o2767):
        for how in CONTENT:
            file = f"{directory}/{mode:o}-{how}"
            command("install", "-m", "755", "/usr/bin/id", file)
            os.chown(file, 0, 1234)
            os.chmod(file, mode)
            os.stat(file)
            _, said = attempt(*prefix, changes, how, file, env=env)
            cached = command(look, file).strip()
            _, runs = attempt(*NOBODY, file)
            gained = [word for word in runs.split() if word.startswith(("euid=", "egid="))]
            found[f"{mode:o} {how}"] = (said, cached, f"{os.stat(file).st_mode & 0o7777:04o}", *gained)
    return found


TORN = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define BYTES (8 << 20)
int main(int argc, char **v) {
    int fd = open(v[1], O_RDWR);
    char *all = malloc(BYTES);
    for (int n = 1; argc > 1; n++) {
        memset(all, 'a' + n % 26, BYTES);
        if (pwrite(fd, all, BYTES, 0) != BYTES) return 1;
        if (n == 1 && write(1, "first\n", 6) != 6) return 2;
    }
}
"""


def item_3(tally):
    """kill -9 in the midst of a pwrite of 8 MiB under shale run, 15 times"""
    with Place("torn", "160M") as v, scratch("torn") as tools:
        program, chance = compiled(tools, "torn", TORN), random.Random(3)
        v.up()
        torn, codes = 0, set()
        for n in range(15):
            file = v.path(f"large-{n % 3}")
            with open(file, "wb") as made:
                made.write(b"a" * (8 * MIB))
            process = v.start(*RUN, program, file, env=SERVED, stdout=subprocess.PIPE)
            process.stdout.readline()
            time.sleep(chance.uniform(0.6, 0.8))
            os.kill(process.pid, signal.SIGKILL)
            codes.add(process.wait())
            process.stdout.close()
            with open(file, "rb") as read:
                data = read.read()
            torn += data != data[:1] * (8 * MIB)
        tally.see("programs ended by the kill only", codes == {-9}, codes)
        tally.see("of 15 writes old and new mixed", torn == 0, torn)
        v.down()
        tally.see("fsck", "clean" in v.fsck(), last(v.fsck()))


def item_4(tally):
    """a file of mode 0600, digested and moved down: who reads it from the image"""
    with Place("modes", "64M", [("ssd", "flash.img", "64M"), ("hdd", "hdd.img", "64M")]) as v:
        v.opened().up()
        v.put("fill", 1 * MIB)
        secret = "the-secret-of-root-that-nobody-reads"
        with open(v.path("secret"), "w", encoding="ascii") as file:
            os.chmod(file.fileno(), 0o600)
            file.write(f"{secret}\n" * 4000)
        shale_of(v, "pin", v.path("secret"), "--tier", "hdd")
        v.migrate()
        shale_of(v, "device", "add", v.mount, "--hdd", f"{v.below}/added.img:64M")
        files = sorted(glob.glob(f"{v.below}/*.img")) + [f"{v.place}/nvm/seg-0000", f"{v.place}/nvm/lock"]
        modes = {os.path.basename(f): oct(os.stat(f).st_mode & 0o777) for f in files}
        tally.see("modes of images, segment and lock", set(modes.values()) == {"0o600"}, modes)
        for file in files[:3]:
            with open(file, "rb") as image:
                is_there = secret.encode() in image.read()
            code, said = attempt(*NOBODY, "sh", "-c", f"strings {file} | grep -c {secret}")
            shown = f"{said or 'nothing'} (the secret is {'' if is_there else 'not '}there)"
            tally.see(f"nobody: strings {os.path.basename(file)} | grep -c", code != 0, short(shown))
        v.down()
        for file in files:
            os.chmod(file, 0o644)
        code, said = attempt(SHALE, "mount", v.file, v.mount)
        modes = {os.path.basename(f): oct(os.stat(f).st_mode & 0o777) for f in files}
        mended = code != 0 or set(modes.values()) == {"0o600"}
        tally.see("all set to 0644: the next mount mends or refuses", mended, modes if code == 0 else short(said))


def shale_of(_, *words):
    return command(SHALE, *words, timeout=60)


FLOOD = """
import glob, os, socket, sys
sent = 0
for n in range(20000):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        s.connect(sys.argv[1])
        s.send(os.urandom(64))
        sent += 1
    except OSError as e:
        why = e
    s.close()
print(sent, 'of 20000')
"""


def item_5(tally):
    """what a local user can stop: locks held by nobody, a socket that gets garbage"""
    with apart(), Place("locks", "64M") as v:
        v.opened().up()
        v.put("file", MIB)
        lock = f"{v.place}/nvm/lock"
        before = v.status()["daemon_pid"]
        # It waits for the daemon's lock, and has it for twelve seconds once that is killed.
        holder = v.start(*NOBODY, "flock", "-F", "-x", lock, "sleep", "12", stderr=subprocess.PIPE)
        time.sleep(0.5)
        os.kill(before, signal.SIGKILL)
        time.sleep(2)
        code, said = attempt("cat", v.path("file"), timeout=15)
        tally.see(
            "nobody: flock -x NVMDIR/lock while the daemon is killed; cat of a file then",
            code == 0,
            last(said) if code else "read",
        )
        holder.kill()
        tally.see(
            "what flock said to nobody",
            "denied" in (told := holder.stderr.read().decode()),
            short(told) or "it has the lock",
        )
        attempt(SHALE, "umount", v.mount)
        attempt("umount", "-l", v.mount)
        holder = v.start(*NOBODY, "flock", "-F", "-x", lock, "sleep", "4", stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        begun = time.monotonic()
        code, said = attempt(SHALE, "mount", v.file, v.mount, timeout=20)
        tally.see(
            "nobody: flock -x NVMDIR/lock; shale mount",
            code == 0,
            f"exit code {code} after {took(begun)} {short(said, 160)}",
        )
        holder.kill()
        if code != 0:
            time.sleep(0.2)
            v.up()
        v.down()
        of_all(tally, v)
        flood(tally, v)


def of_all(tally, v):
    """The lock of all mounts."""
    with v.start(*NOBODY, "flock", "-F", "-x", "/run/shale/lock", "sleep", "4", stderr=subprocess.DEVNULL) as holder:
        time.sleep(0.5)
        begun = time.monotonic()
        code, said = attempt(SHALE, "mount", v.file, v.mount, timeout=20)
        quick = code == 0 and time.monotonic() - begun < 3
        tally.see(
            "nobody: flock -x /run/shale/lock sleep 4; shale mount",
            quick,
            f"exit code {code} after {took(begun)} {short(said, 160)}",
        )
        holder.kill()


def flood(tally, v):
    """Garbage for the socket: 20,000 connections."""
    directory = next(d for d in glob.glob("/run/shale/*/") if os.path.exists(f"{d}/socket"))
    sizes = lambda: sum(os.path.getsize(f) for f in glob.glob(f"{directory}/log*"))
    before, begun = sizes(), time.monotonic()
    code, said = attempt(*NOBODY, "/usr/bin/python3", "-c", FLOOD, f"{directory}/socket", timeout=60)
    grown = sizes() - before
    tally.see(
        "20,000 connections with garbage, as nobody: bytes of log",
        code == 0 and grown < 256 << 10,
        f"{grown}; {said} in {took(begun)}",
    )
    v.is_right(tally, "after that")
    v.down()
    tally.see("fsck", "clean" in v.fsck(), last(v.fsck()))


def item_6(tally):
    """one flipped byte in the target of a symbolic link in NVM, 20 times"""
    with Place("links", "64M") as v:
        chance, links = random.Random(6), {}
        v.up()
        for n in range(60):
            links[f"link-{n}"] = f"target-{n:02}-" + "".join(
                chance.choices("abcdefghijklmnop", k=chance.choice((20, 150, 900)))
            )
            os.symlink(links[f"link-{n}"], v.path(f"link-{n}"))
        shale_of(v, "digest", v.mount)
        v.down()
        segment = f"{v.place}/nvm/seg-0000"
        with open(segment, "rb") as file:
            content = file.read()
        flips, silent = {}, []
        for name in chance.sample(sorted(links), 20):
            # Behind the part that tells it from the others, in each copy that there is.
            inside = 12 + chance.randrange(len(links[name]) - 12)
            places = [m.start() + inside for m in re.finditer(re.escape(links[name].encode()), content)]
            flips[name] = places
            flip(segment, content, places)
            code, _ = attempt(SHALE, "fsck", v.file)
            silent += [name] if code == 0 or not places else []
            unflip(segment, content, places)
        tally.see("of 20 flips fsck said clean", not silent, len(silent))
        flip(segment, content, sum(flips.values(), []))
        code, said = attempt(SHALE, "mount", v.file, v.mount)
        if code != 0:
            tally.see("mounted with all of them", False, short(said))
            return
        wrong = refused = 0
        for name, target in links.items():
            try:
                found = os.readlink(v.path(name))
                wrong += found != target
            except OSError:
                refused += 1
        tally.see("links with another target", wrong == 0, f"{wrong}; refused with an error: {refused} of 20")


def flip(segment, content, places):
    with open(segment, "r+b") as file:
        for at in places:
            file.seek(at)
            file.write(bytes([content[at] ^ 1]))


def unflip(segment, content, places):
    with open(segment, "r+b") as file:
        for at in places:
            file.seek(at)
            file.write(content[at : at + 1])


def item_7(tally):
    """a volume larger than the memory that is free, and one on a disk (mkfs only, no file above 64 MiB)"""
    with scratch("memory") as directory:
        at = os.path.join(directory, "memory")
        os.mkdir(at)
        command("mount", "-t", "tmpfs", "-o", "size=64T,nr_inodes=10,mode=755", "none", at)
        try:
            with open("/proc/meminfo", encoding="ascii") as file:
                total = int(file.read().split("MemTotal:")[1].split()[0]) >> 20
            # Whatever the program does, it gets no file that could fill the machine.
            limited = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64 * MIB, 64 * MIB))
            words = [SHALE, "mkfs", f"{directory}/V.toml", "--nvm", f"{at}/nvm:{total + 8}G"]
            code, said = attempt(*words, preexec_fn=limited)
            refused = code == 1 and "memory" in said and "--force" in said
            tally.see(
                f"mkfs --nvm on tmpfs: {total + 8} GiB, the machine has {total}",
                refused,
                short(said) or f"exit code {code}, no word",
            )
            tally.see("what it left there", not os.listdir(at), os.listdir(at))
        finally:
            attempt("umount", "-l", at)
    with scratch("disk", "/var/tmp") as directory:
        code, said = attempt(SHALE, "mkfs", f"{directory}/V.toml", "--nvm", f"{directory}/nvm:64M")
        told = "no NVM" in said and "power" in said
        tally.see(
            "mkfs --nvm on a disk's file system: refused, or told that a power cut loses it",
            code != 0 or told,
            short(said),
        )


ITEMS = {1: item_1, 2: item_2, 3: item_3, 4: item_4, 5: item_5, 6: item_6, 7: item_7}
