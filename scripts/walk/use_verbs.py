"""Items 19 to 24 of the walk through what use has found: what the commands say and do."""

import json
import os
import shutil
import subprocess
import sys

from tiers import spoil
from use_tools import NOBODY, RUN, SERVED, Place, apart, attempt, is_mounted, last, scratch, short, small_ext4
from walk import BLOCK, HARNESS, MIB, SHALE, Failed, command


def item_19(tally):
    """zones of a plain device and the erase blocks below them, by where the bytes lie"""
    with Place("zones", "64M", [("ssd", "loop:z.img", "96M:4M")]) as v:
        v.up()
        for n in range(32):
            v.put(f"f{n}", MIB)
        v.migrate()
        _, listed = attempt(SHALE, "device", "list", v.mount)
        parts = [(name, p) for name in v.copy for p in v.where(name) if p["tier"] == "ssd"]
        v.down()
        with open(f"{v.below}/z.img", "rb") as file:
            image = file.read()
        lies = {image[at : at + BLOCK]: at for at in range(0, len(image), BLOCK)}
        zones = {}
        for name, part in parts:
            for at in range(part["offset"], part["offset"] + part["bytes"], BLOCK):
                place = lies.get(bytes(v.copy[name][at : at + BLOCK]), -1)
                zones.setdefault(part["zone"], set()).add(place // (4 * MIB))
        straddle = {zone: sorted(units) for zone, units in zones.items() if len(units) > 1}
        tally.see(
            f"of {len(zones)} zones of 4 MiB lie in two units of 4 MiB of the device",
            zones and not straddle,
            straddle or "none",
        )
        tally.see(
            "device list says which unit, and who told it",
            "unit" in listed.lower() or "erase" in listed.lower(),
            short(listed, 400),
        )
    with scratch("unit", "/var/tmp") as directory, scratch("unit") as nvm:
        words = ["mkfs", f"{nvm}/V.toml", "--nvm", f"{nvm}/nvm:64M", "--ssd", f"{directory}/a.img:96M,zone=4M"]
        code, said = attempt(SHALE, *words)
        tally.see("mkfs --ssd PATH:96M,zone=4M", code == 0, short(said))


IDLE = "import os, sys; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.write(f, b'x'); os.write(1, b'.'); sys.stdin.read()"


def idle(v, name, env=None):
    """A program that has written one byte and stays."""
    words = (*RUN, sys.executable, "-c", IDLE, v.path(name))
    process = v.start(
        *words, env={**SERVED, **(env or {})}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    if process.stdout.read(1) != b".":
        raise Failed(f"{name}: {process.stderr.read().decode()[-300:]}")
    return process


def item_20(tally):
    """log_bytes of the volume, and SHALE_LOG_BYTES, as clients get them"""
    with Place("logs", "96M", options=("--log-bytes", "64M")) as v:
        v.up()
        for name, env in (
            ("unset", {}),
            ("32M", {"SHALE_LOG_BYTES": "32M"}),
            ("64M", {"SHALE_LOG_BYTES": "64M"}),
            ("1G", {"SHALE_LOG_BYTES": "1G"}),
        ):
            process = idle(v, f"log-{name}", env)
            bytes_of = v.client(process)["log_bytes"] // MIB
            process.stdin.close()
            process.wait(10)
            told = process.stderr.read().decode()
            wanted = 32 if name == "32M" else 64
            right = bytes_of == wanted and (name != "1G" or "SHALE_LOG_BYTES" in told)
            tally.see(
                f"mkfs --log-bytes 64M, SHALE_LOG_BYTES {name}: MiB of a client's log",
                right,
                f"{bytes_of} {short(told, 160)}",
            )
        code, said = attempt(*RUN, "true", env={"SHALE_LOG_BYTES": "many"})
        tally.see("SHALE_LOG_BYTES=many", code == 2, f"exit code {code} {short(said, 160)}")
        v.down()


def item_21(tally):
    """what is believed of clients, counts that are 0, refused mkfs, bench, help, words, --json"""
    code, said = attempt(HARNESS, "hostile", "--only", "reads of what may not be read", "--no-pairs", timeout=60)
    tally.see("hostile: reads of what may not be read", code == 0 and "1 passed, 0 failed" in said, last(said))
    with scratch("refused") as nvm, scratch("refused", "/var/tmp") as below:
        words = ["mkfs", f"{nvm}/V.toml", "--nvm", f"{nvm}/nvm:64M", "--hdd", f"{below}/h.img:10T"]
        for more in ((), ("--force",)):
            code, said = attempt(SHALE, *words, *more)
            left = os.listdir(nvm) + os.listdir(below)
            tally.see(
                f"mkfs with an hdd of 10 TiB {' '.join(more)}: refused, names the tier; leaves nothing",
                code == 1 and "hdd" in said and not left,
                f"{short(said)}; left: {left}",
            )
    code, said = attempt(SHALE, "bench", "micro", "--quick", timeout=60)
    fails = [line for line in said.splitlines() if "FAIL" in line]
    tally.see(
        "bench micro --quick: lines with FAIL; exit code",
        code is not None and (code != 0) == bool(fails),
        f"{len(fails)}; {code}",
    )
    helps(tally)
    with Place("words", "64M", [("ssd", "a.img", "96M"), ("ssd", "b.img", "96M")]) as v:
        words_of_verbs(tally, v)


def helps(tally):
    """Help fits 80 columns, without a line that ends in the middle."""
    _, said = attempt(SHALE, "--help")
    verbs = [
        line.split()[0]
        for line in said.split("Commands:")[-1].split("Options:")[0].splitlines()
        if line.startswith("  ") and line.split()
    ]
    wide = {}
    for verb in verbs:
        _, said = attempt(SHALE, verb, "--help", env={"COLUMNS": "80"})
        lines = [line for line in said.splitlines() if len(line) > 80]
        # Broken by hand, and once more by the terminal: in a paragraph a line that has room for the next word.
        text = said.split("Options:")[-1].splitlines()
        for line, following in zip(text, text[1:]):
            if line and following and line[0] != " " and following[0] != " " and line[-1] not in ".:;":
                lines += [line] if len(line) + 1 + len(following.split()[0]) <= 70 else []
        if lines:
            wide[verb] = len(lines)
    tally.see(
        f"help of {len(verbs)} verbs: lines above 80 columns or wrapped twice",
        len(verbs) > 10 and not wide,
        wide or "none",
    )


def words_of_verbs(tally, v):
    code, said = attempt(SHALE, "mount", "--json", v.file, v.mount)
    tally.see("mount --json", code == 0 and is_json(said), short(said, 160))
    if not is_mounted(v.mount):
        v.up()
    said = "".join(attempt(SHALE, *words)[1] for words in (("status", v.mount), ("top", v.mount, "--once")))
    tally.see("'1 clients' in status and top", "1 clients" not in said, said.count("1 clients"))
    for n in range(30):
        v.put(f"f{n}", MIB)
    for words in (("limit", v.mount), ("migrate", v.mount), ("sync", v.mount)):
        code, said = attempt(SHALE, *words, "--json")
        tally.see(f"{words[0]} --json", code == 0 and is_json(said), short(said, 160))
    v.migrate()
    rows = {row["path"]: sum(n for n in row.values() if isinstance(n, (int, float))) for row in v.status()["device"]}
    tally.see("status --json, device: rows that are always 0", all(rows.values()), rows)
    device = f"{v.below}/b.img"
    attempt(SHALE, "device", "evacuate", v.mount, device)
    code, said = attempt(SHALE, "device", "remove", "--json", v.mount, device)
    tally.see("device remove --json", code == 0 and is_json(said), short(said, 160))
    v.down()
    spoiled = spoil(v, f"{v.below}/a.img", 1)
    v.up()
    code, said = attempt(SHALE, "scrub", v.mount)
    ((name, at),) = spoiled or [("", 0)]
    tally.see(
        f"scrub names file and bytes ({name}, {at})",
        code == 3 and name in said and str(at) in said and "0x" not in said,
        short(said),
    )
    code, said = attempt(SHALE, "umount", "--json", v.mount)
    tally.see("umount --json", code == 0 and is_json(said), short(said, 160))


def is_json(said):
    try:
        return all(json.loads(line) is not None for line in said.strip().splitlines()[-1:]) and said.strip() != ""
    except ValueError:
        try:
            return json.loads(said) is not None
        except ValueError:
            return False


def item_22(tally):
    """--nvm DIR:256M on a file system of 300 MiB"""
    with scratch("size", "/var/tmp") as directory, small_ext4(directory) as small:
        nvm, file, at = f"{small}/nvm", f"{directory}/V.toml", f"{directory}/at"
        os.mkdir(at)
        code, said = attempt(SHALE, "mkfs", file, "--nvm", f"{nvm}:256M")
        refused = code == 1 and nvm in said and "MiB in all" in said
        tally.see("mkfs refuses with what it takes in all", refused, short(said))
        if code != 0:
            attempt(SHALE, "mkfs", file, "--nvm", f"{nvm}:256M", "--force")
        code, said = attempt(SHALE, "mount", file, at)
        named = code == 0 or (nvm in said and "MiB are free" in said)
        tally.see("made all the same, its mount works or names directory and bytes", named, short(said))
        attempt(SHALE, "umount", at)


def item_23(tally):
    """the operator's mistakes"""
    with scratch("mistakes", "/var/tmp") as d, small_ext4(d) as small:
        mistakes(tally, d, small)
        full_image(tally, d, small)
    of_others(tally)
    backup(tally)
    damage(tally)
    four_clients(tally)


def mistakes(tally, d, small):
    """Commands of mkfs that were taken."""
    nosuch = "/dev/shale-walk-nosuch"
    os.mkdir(f"{d}/full")
    with open(f"{d}/full/letter", "w", encoding="ascii") as file:
        file.write("mine")
    rows = [
        ("an image below /dev", f"{d}/nvm:32M", "--ssd", f"{nosuch}:64M"),
        ("missing parents", f"{d}/none/of/these/nvm:32M"),
        ("an image larger than its file system", f"{d}/nvm:32M", "--hdd", f"{small}/h.img:400M"),
        ("a directory with other files", f"{d}/full:32M"),
        ("too small a device", f"{d}/nvm:32M", "--ssd", f"{d}/s.img:2M"),
        ("control characters in a name", f"{d}/nvm:32M", "--label", "evil\x1b[31m"),
    ]
    keep = {"ext4.img", "small", "full"}
    for what, nvm, *more in rows:
        code, said = attempt(SHALE, "mkfs", f"{d}/V.toml", "--nvm", nvm, *more)
        left = (
            sorted(set(os.listdir(d)) - keep)
            + sorted(set(os.listdir(f"{d}/full")) - {"letter"})
            + sorted(set(os.listdir(small)) - {"lost+found"})
        )
        left += [nosuch] if os.path.exists(nosuch) else []
        right = code not in (0, None) and not left and "\x1b" not in said
        tally.see(
            f"mkfs, {what}: refused, leaves nothing", right, f"exit code {code}, left {left}; {short(said, 160)!a}"
        )
        for name in left:
            path = next(
                (
                    p
                    for p in (nosuch, f"{d}/{name}", f"{d}/full/{name}", f"{small}/{name}")
                    if os.path.lexists(p) and (p == name or p.endswith("/" + name))
                ),
                None,
            )
            if path and os.path.isdir(path):
                shutil.rmtree(path)
            elif path and path != f"{d}/full/letter":
                os.remove(path)


def full_image(tally, d, small):
    """The file system below an image is full: what df goes on promising."""
    with Place("image", "64M") as v:
        v.file, nvm = f"{v.place}/W.toml", f"{v.place}/w"
        code, said = attempt(SHALE, "mkfs", v.file, "--nvm", f"{nvm}:64M", "--hdd", f"{small}/h.img:512M", "--force")
        if code != 0:
            raise Failed(short(said))
        v.up()
        attempt("dd", "if=/dev/zero", f"of={small}/fill", "bs=1M", "status=none", timeout=30)
        for n in range(24):
            v.put(f"f{n}", MIB)
        _, said = attempt(SHALE, "migrate", v.mount)
        at = os.statvfs(v.mount)
        free = at.f_bavail * at.f_frsize // MIB
        tally.see(
            "hdd of 512 MiB, below which nothing is free: MiB that df promises",
            free < 100,
            f"{free}; migrate: {short(said, 160)}",
        )
        v.is_right(tally, "then")
        _, said = attempt(SHALE, "status", v.mount)
        named = [line.strip() for line in said.splitlines() if "full" in line or "fail" in line]
        tally.see("status names it", any("is full" in line for line in named), short("\n".join(named)))
        v.down()


THEIRS = """set -e
mkdir {d}/dev {d}/m {d}/run
mount -t tmpfs -o mode=755 none {d}/dev
mknod -m 666 {d}/dev/fuse c 10 229
echo user_allow_other > {d}/dev/fuse.conf
mount --bind {d}/dev/fuse /dev/fuse
mount --bind {d}/dev/fuse.conf /etc/fuse.conf
cp {shale} {d}/shale
chmod 700 {d}/run; chown -R 65534:65534 {d}/m {d}/run {d}
user="{nobody} env XDG_RUNTIME_DIR={d}/run {d}/shale"
$user mkfs {d}/V.toml --nvm {d}/nvm:32M >/dev/null
$user mount -o allow_other {d}/V.toml {d}/m >/dev/null
{shale} status {d}/m || true
$user umount {d}/m >/dev/null
umount {d}/dev/fuse 2>/dev/null || true
"""


def of_others(tally):
    """status on a bind mount, and by root on a user's mount."""
    with Place("bind", "64M") as v:
        v.up()
        bind = f"{v.below}/bind"
        os.mkdir(bind)
        command("mount", "--bind", v.mount, bind)
        v.others.append(bind)
        _, said = attempt(SHALE, "status", bind)
        tally.see(
            "status on a bind mount names the mount, and no umount",
            v.mount in said and "shale umount" not in said,
            short(said),
        )
        command("umount", bind)
        v.down()
    with apart(), scratch("theirs") as d:
        _, said = attempt("bash", "-c", THEIRS.format(d=d, shale=SHALE, nobody=" ".join(NOBODY)), timeout=40)
        told = "65534" in said and "(shale umount" not in said and "shale umount DIR" not in said
        tally.see(
            "status by root on a user's healthy mount says whose it is", told and "has mounted it" in said, short(said)
        )
        attempt("umount", "-l", f"{d}/m")
        attempt("umount", "-l", f"{d}/dev")


def backup(tally):
    """A backup is copied back in place: fsck and mount say the same."""
    with Place("backup", "64M", [("hdd", "hdd.img", "64M")]) as v:
        files = [f"{v.place}/nvm/seg-0000", f"{v.below}/hdd.img"]
        for turn in range(4):
            v.up()
            with open(v.path(f"file-{turn}"), "w", encoding="ascii") as file:
                file.write("content")
            v.down()
            if turn == 0:
                for n, path in enumerate(files):
                    command("cp", path, f"{v.below}/backup-{n}")
        for n, path in enumerate(files):
            command("cp", f"{v.below}/backup-{n}", path)
        mount, fsck = attempt(SHALE, "mount", v.file, v.mount), attempt(SHALE, "fsck", v.file)
        same = (mount[0] == 0) == (fsck[0] == 0)
        tally.see(
            "a backup copied back in place: mount and fsck agree",
            same,
            f"mount {mount[0]}: {short(mount[1], 200)}; fsck {fsck[0]}: {last(fsck[1])}",
        )
        if mount[0] != 0:
            code, said = attempt(SHALE, "fsck", v.file, "--repair", "--restored")
            tally.see("fsck --repair --restored believes it", code == 0 and "clean" in v.fsck(), last(said))


def damage(tally):
    """A damaged bitmap; a policy that there is not; control characters."""
    with Place("damage", "64M") as v:
        with open(v.file, encoding="utf8") as file:
            text = file.read()
        for what, old, new in (
            ('durability = "buffered"', '"strict"', '"buffered"'),
            ("a name with control characters", 'name = "V"', 'name = "\\u001b[31mred"'),
        ):
            with open(v.file, "w", encoding="utf8") as file:
                file.write(text.replace(old, new))
            code, said = attempt(SHALE, "mount", v.file, v.mount)
            if code == 0:
                said += attempt(SHALE, "status", v.mount)[1]
                attempt(SHALE, "umount", v.mount)
            tally.see(
                f"{what} in VOLUME.toml: refused",
                code not in (0, None) and text != text.replace(old, new) and "\x1b" not in said,
                f"exit code {code}; {short(said, 160)!a}",
            )
        with open(v.file, "w", encoding="utf8") as file:
            file.write(text)
        with open(f"{v.place}/nvm/seg-0000", "r+b") as file:
            content = file.read()
            at = content.index(b"SHALEBMP") // BLOCK * BLOCK + 100
            file.seek(at)
            file.write(bytes([content[at] ^ 1]))
        code, said = attempt(SHALE, "mount", v.file, v.mount)
        tally.see(
            "a damaged bitmap block: mount names fsck", code not in (0, None) and "shale fsck" in said, short(said)
        )


def four_clients(tally):
    """How much can be written beside four programs that hold what they asked for ahead."""
    with Place("clients", "96M") as v:
        v.up()
        at = os.statvfs(v.mount)
        free = at.f_bavail * at.f_frsize
        clients = [idle(v, f"idle-{n}") for n in range(4)]
        for client in clients:
            v.client(client)
        attempt("dd", "if=/dev/zero", f"of={v.path('all')}", "bs=64k", "status=none", timeout=40)
        written = os.path.getsize(v.path("all"))
        at = os.statvfs(v.mount)
        left = at.f_bavail * at.f_frsize
        said = f"{written / 1e6:.1f} of {free / 1e6:.1f} MB, then df shows {left / 1e6:.1f}"
        tally.see("NVM of 96 MiB, four idle clients: ENOSPC after", written > 0.9 * free and left < 0.05 * free, said)
        for client in clients:
            client.kill()
            client.wait()
        v.down()


def item_24(tally):
    """faults --only limits with one more descriptor"""
    words = (HARNESS, "faults", "--only", "limits", "--loads", "mail")
    for more in (1, 4):
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(more)]
        code, said = attempt(*words, timeout=30, pass_fds=held)
        for fd in held:
            os.close(fd)
        untried = "failpoints" in said
        tally.see(
            f"{more} descriptors more: faults --only limits --loads mail",
            code == 0 and not untried,
            f"exit code {code}; {last(said)}",
        )


ITEMS = {19: item_19, 20: item_20, 21: item_21, 22: item_22, 23: item_23, 24: item_24}
