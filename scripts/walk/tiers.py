#!/usr/bin/env python3
"""Walks through what three tiers promise, on real mounts with the program's own verbs, and prints what is found.

    scripts/walk/tiers.py [STEP …]      all steps, or only these; root; some minutes

Each byte that is written is compared with a copy. The last line says how much was looked at; exit code 1 where
something was not as promised."""

import os
import random
import shutil
import subprocess
import sys
import threading
import time

from manage import evacuation, shares, trouble, verbs
from walk import BLOCK, HARNESS, MIB, SHALE, THREE, Failed, Tally, Volume, command, fill, overwrite, shale, until


def joined(tally):
    """Image files and a loop device joined; direct I/O through io_uring; devices missing, swapped, foreign."""
    with Volume("joined", "64M", THREE) as v:
        v.up()
        fill(v, 80, 5 * MIB)
        v.migrate()
        held = {os.path.basename(d["path"]): d["live_bytes"] // MIB for d in v.devices()}
        tally.see("each of four devices holds something (MiB)", all(held.values()), held)
        fds = f"/proc/{v.status()['daemon_pid']}/fd"
        to = {n: os.readlink(f"{fds}/{n}") for n in os.listdir(fds)}
        flags = {}
        for n, path in to.items():
            if path in [d["path"] for d in v.devices()]:
                with open(fds.replace("/fd", "/fdinfo/") + n, encoding="utf8") as info:
                    flags[path] = int(info.read().split("flags:")[1].split()[0], 8) & os.O_DIRECT
        tally.see("devices opened with O_DIRECT", len(flags) == 4 and all(flags.values()), len(flags))
        rings = sum("io_uring" in path for path in to.values())
        tally.see("rings of io_uring in the daemon", rings > 0, rings)
        v.is_right(tally, "over four devices")
        v.again()
        v.is_right(tally, "mounted again")
        image, used = os.path.join(v.below, "a.img"), lambda p: os.stat(p).st_blocks * 512
        before = used(image)
        for name in list(v.copy)[::2] + list(v.copy)[1::4]:
            if name in v.copy:
                v.remove(name)
        shale("digest", v.mount)
        until("the image shrinks", lambda: used(image) < before or v.of_device(image)["live_bytes"] == before, 20)
        tally.see("discard: bytes of a.img on the host", used(image) < before, f"{before} to {used(image)}")
        v.down()
        refusals(tally, v)
        v.up()
        v.is_right(tally, "after all that")
        tally.see("scrub", True, shale("scrub", v.mount).strip().splitlines()[-1])
        v.down()
        tally.see("fsck", True, v.fsck().strip().splitlines()[-1])


def refusals(tally, v):
    """Each wrong device is named by a mount that is refused."""
    a, c, d = (os.path.join(v.below, name) for name in ("a.img", "c.img", "d.img"))
    aside = d + ".aside"

    def refused(what, *names):
        said = shale("mount", v.file, v.mount, code=None)
        if os.path.ismount(v.mount):
            v.is_right(tally, f"{what}: mounted all the same")
            v.down()
            return
        tally.see(f"{what}: refused by name", all(n in said for n in names), said.strip().splitlines()[0])

    os.rename(d, aside)
    refused("missing", d)
    with open(d, "wb") as file:
        file.truncate(192 * MIB)
    refused("blank", d)
    with open(d, "wb") as file:
        file.write(random.Random(1).randbytes(192 * MIB))
    refused("foreign", d)
    shutil.copy(c, d)
    refused("another device's copy", d)
    os.rename(aside, d)
    os.rename(c, aside)
    os.rename(d, c)
    os.rename(aside, d)
    refused("two swapped", c)
    os.rename(c, aside)
    os.rename(d, c)
    os.rename(aside, d)
    shutil.copy(a, aside)
    os.truncate(a, os.path.getsize(a) - 8 * MIB)
    refused("cut", a)
    os.rename(aside, a)


def zones(tally):
    """Cleaning, erasing, the reserved zone, hot and cold apart; each kind of device."""
    kinds = [
        ("conventional, zones of 4 MiB", [("ssd", "a.img", "160M:4M")]),
        ("open-channel", [("ssd", "flash.img", "160M:2M,kind=open-channel")]),
    ]
    for kind, devices in kinds:
        with Volume("zones", "64M", devices) as v:
            v.up()
            hot, cold = [f"hot-{n}" for n in range(4)], [f"cold-{n}" for n in range(29)]
            for name in cold + hot:
                v.put(name, 4 * MIB)
            v.migrate()
            for turn in range(24):
                overwrite(v, hot, 700, turn)
                overwrite(v, cold, 60, turn + 100)
                v.migrate()
            tier, moved = v.tier("ssd"), v.moved()
            tally.see(f"{kind}: zones erased", tier["zones_erased"] > 10, tier["zones_erased"])
            tally.see("bytes cleaned", moved["cleaned_bytes"] > 0, moved["cleaned_bytes"])
            tally.see("bytes of the zone in reserve", tier["reserved_bytes"] > 0, tier["reserved_bytes"])
            share = {}
            for what, names in (("hot", hot), ("cold", cold)):
                parts = [p for name in names for p in v.where(name) if p["tier"] == "ssd"]
                all_of = sum(p["bytes"] for p in parts)
                in_hot = sum(p["bytes"] for p in parts if p["hot"])
                share[what] = round(100 * in_hot / max(all_of, 1))
            tally.see("% that lies in zones of hot data", share["hot"] > 2 * share["cold"], share)
            v.is_in_order(tally)
            v.is_right(tally, "")
            v.kill()
            overwrite(v, hot + cold, 500, 7)
            v.is_right(tally, "after kill -9 and more")
            v.again()
            v.is_right(tally, "mounted again")
            v.down()
            tally.see("fsck", True, v.fsck().strip().splitlines()[-1])


def flash(tally):
    """Emulated flash behind a translation layer as a block device: ext4 and btrfs on it, with its counters."""
    for fs, make in (("ext4", ["mkfs.ext4", "-q", "-F"]), ("btrfs", ["mkfs.btrfs", "-q", "-f"])):
        serve = [HARNESS, "flash", "serve", "--mib", "320"]
        with subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            loop = process.stdout.readline().split('"device":"')[-1].split('"')[0].strip()
            at = f"/tmp/shale-walk-{fs}"
            os.makedirs(at, exist_ok=True)
            try:
                command(*make, loop)
                command("mount", loop, at)
                data = {n: random.Random(n).randbytes(2 * MIB) for n in range(40)}
                for _ in range(3):
                    for n, bytes_of in data.items():
                        with open(f"{at}/{n}", "wb") as file:
                            file.write(bytes_of)
                            os.fsync(file.fileno())
                command("umount", at)
                command("mount", loop, at)
                wrong = 0
                for n, bytes_of in data.items():
                    with open(f"{at}/{n}", "rb") as file:
                        wrong += file.read() != bytes_of
                process.stdin.write("counters\n")
                process.stdin.flush()
                counters = process.stdout.readline().strip()
                tally.see(f"{fs} on {loop}: files wrong of {len(data)}", wrong == 0, f"{wrong}; {counters}")
                tally.see("pages programmed out of order", '"out_of_order":0' in counters.replace(" ", ""))
            finally:
                command("umount", at, code=None)
                os.rmdir(at)
                process.stdin.close()
                process.wait(60)


def migration(tally):
    """Down at 95% or at a setting, up, straight; pause, limit, over a kill; how long calls take meanwhile."""
    with Volume("moves", "64M", THREE) as v:
        v.up()
        used = lambda: v.status()["migration"]["moved_bytes"]
        tally.see("the mark, in %", v.moved()["at_percent"] == 95, v.moved()["at_percent"])
        n = 0
        while used() == 0 and n < 128:
            v.put(f"m-{n}", MIB // 2)
            shale("digest", v.mount)
            n += 1
        room = shale("df", v.mount).splitlines()[1]
        tally.see("files of 512 KiB until it began by itself", 20 < n < 128, f"{n}; {room}")
        fill(v, 40, 4 * MIB)
        moved = v.moved()
        tally.see("bytes straight from logs to a lower tier", moved["direct_to_tier_bytes"] > 0, moved["direct_to_tier_bytes"])
        tally.see("bytes down", moved["down_bytes"] > 0, moved["down_bytes"])
        v.is_right(tally, "by themselves")
        while_moving(tally, v)
        rises(tally, v)
        v.down()
        with open(v.file, "r+", encoding="utf8") as file:
            text = file.read()
            file.seek(0)
            file.write("migrate_at_percent = 60\n" + text)
        v.up()
        tally.see("the mark from VOLUME.toml", v.moved()["at_percent"] == 60, v.moved()["at_percent"])
        paced(tally, v)
        v.is_right(tally, "at the end")
        v.is_in_order(tally)
        v.down()
        tally.see("fsck", True, v.fsck().strip().splitlines()[-1])


def while_moving(tally, v):
    """Everything moves down again and again while a program writes and reads."""
    stop, before = threading.Event(), v.moved()["down_bytes"]

    def mover():
        while not stop.is_set():
            v.migrate()

    thread = threading.Thread(target=mover)
    thread.start()
    names, longest, calls, wrong = list(v.copy)[-20:], 0, 0, 0
    chance, end = random.Random(5), time.monotonic() + 8
    while time.monotonic() < end:
        longest = max(longest, overwrite(v, names, 20, calls))
        name = chance.choice(names)
        begun = time.monotonic()
        with open(v.path(name), "rb") as file:
            at = chance.randrange(len(v.copy[name]) // BLOCK) * BLOCK
            file.seek(at)
            wrong += file.read(BLOCK) != v.copy[name][at : at + BLOCK]
        longest = max(longest, round((time.monotonic() - begun) * 1000, 1))
        calls += 21
    stop.set()
    thread.join()
    down = (v.moved()["down_bytes"] - before) // MIB
    tally.see(
        f"{calls} calls while {down} MiB went down: bad; longest in ms", wrong == 0 and longest < 1000, f"{wrong}; {longest}"
    )


def rises(tally, v):
    """What is read again and again comes back up; each reader is a process of its own."""
    v.put("wanted", 6 * MIB)
    v.migrate()
    for name in list(v.copy)[:30]:
        v.remove(name)
    shale("digest", v.mount)
    read = f"if={v.path('wanted')}"
    up = lambda: shale("run", "--", "dd", read, "of=/dev/null", "bs=4k", "status=none") or v.tiers_of("wanted").get("nvm", 0)
    tally.see("a cold file is in no NVM", v.tiers_of("wanted").get("nvm", 0) == 0, v.tiers_of("wanted"))
    until("a file that is read often comes up", lambda: up() == 6 * MIB, 60)
    tally.see("read often, it is in", True, v.tiers_of("wanted"))


def paced(tally, v):
    """Pause, resume and the limit, which outlive the daemon."""
    v.migrate("--pause")
    v.kill()
    tally.see("paused, and still so after kill -9", v.moved()["paused"])
    before = v.moved()["moved_bytes"]
    fill(v, 8, 2 * MIB, 500)
    shale("digest", v.mount)
    time.sleep(1)
    tally.see("paused above the mark: bytes moved", v.moved()["moved_bytes"] == before, v.moved()["moved_bytes"] - before)
    v.migrate("--limit", "4M")
    v.kill()
    v.migrate("--resume")
    fill(v, 6, 4 * MIB, 520)
    before, begun = v.moved()["moved_bytes"], time.monotonic()
    time.sleep(8)
    moved, time_of = (v.moved()["moved_bytes"] - before) / MIB, time.monotonic() - begun
    # A batch of a second may have begun right before the end.
    right = 2 * time_of < moved < 4 * time_of + 5
    tally.see("limit of 4 MiB/s, after another kill: MiB, and in how many s", right, (round(moved, 2), round(time_of, 2)))
    v.migrate("--limit", "0")


def reading(tally):
    """Caches and read-ahead by messages; a spoiled block is EIO by name, and nothing else is."""
    with Volume("reads", "64M", [("ssd", "a.img", "128M"), ("hdd", "c.img", "256M")]) as v:
        v.up()
        fill(v, 20, 8 * MIB)
        v.migrate()
        reader = (
            "import sys\n"
            "for _ in range(2):\n"
            "    with open(sys.argv[1], 'rb', 0) as f:\n"
            "        n = 0\n"
            "        while b := f.read(4096): n += 1\n"
            "    print(n, flush=True); sys.stdin.readline()\n"
        )
        words = [SHALE, "run", "--", sys.executable, "-c", reader, v.path("file-003")]
        shale("pin", v.path("file-005"), "--tier", "hdd")
        v.migrate()
        for tier, name in (("ssd", "file-003"), ("hdd", "file-005")):
            before, asked = below_reads(v), []
            words = [SHALE, "run", "--", sys.executable, "-c", reader, v.path(name)]
            with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                for _ in range(2):
                    calls = int(process.stdout.readline())
                    now = below_reads(v)
                    asked.append([n - m for n, m in zip(now, before)])
                    before = now
                    process.stdin.write("\n")
                    process.stdin.flush()
            (own, messages), again = asked[0], sum(asked[1])
            tally.see(f"{tier}: reads of the device by the program, messages", (own == 0) != (messages == 0), asked[0])
            tally.see(f"{calls} reads in a row of 4 KiB ask below NVM so often (read-ahead)", own + messages < calls / 8)
            tally.see("the same once more (cache)", again < (own + messages) / 4, again)
        v.down()
        spoiled = spoil(v, os.path.join(v.below, "a.img"), 3)
        v.up()
        found = set()
        for name, data in v.copy.items():
            with open(v.path(name), "rb", 0) as file:
                for at in range(0, len(data), BLOCK):
                    try:
                        if os.pread(file.fileno(), BLOCK, at) != data[at : at + BLOCK]:
                            raise Failed(f"{name} at {at}: wrong bytes")
                    except OSError as e:
                        found.add((name, at, e.errno))
        wanted = {(name, at, 5) for name, at in spoiled}
        tally.see("blocks spoiled on flash: EIO exactly there", found == wanted, sorted(found))
        named = v.status()["bad_blocks"]
        tally.see("named by status", len(named) == 3, named[0]["why"])
        said = shale("scrub", v.mount, code=3)
        tally.see("scrub ends with 3", True, said.strip().splitlines()[-1])
        for name, at in spoiled:
            v.change(name, at, b"n" * BLOCK)
        v.migrate()
        v.is_right(tally, "when these were written anew")
        tally.see("then named by status", v.status()["bad_blocks"] == [], v.status()["bad_blocks"])
        tally.see("scrub then", True, shale("scrub", v.mount).strip().splitlines()[-1])


def below_reads(v):
    """Times that clients read devices by themselves, and that they asked the daemon for blocks."""
    moved = v.moved()
    return moved["direct_reads"], moved["client_reads"]


def spoil(v, image, count):
    """Spoils blocks of files that lie in an image. Gives which."""
    with open(image, "r+b") as file:
        all_of, spoiled = file.read(), []
        for name, data in v.copy.items():
            at = 37 * BLOCK * (len(spoiled) + 3)
            lies = all_of.find(bytes(data[at : at + BLOCK]))
            if lies >= 0 and len(spoiled) < count:
                file.seek(lies + 100)
                file.write(b"spoiled")
                spoiled.append((name, at))
    return spoiled


def metadata(tally):
    """Inodes, directories and extents go below NVM when nothing else makes room, and come back."""
    with Volume("small", "34M", [("ssd", "a.img", "96M")]) as v:
        v.up()
        v.put("big", 26 * MIB)
        shale("pin", v.path("big"), "--tier", "nvm")
        held = lambda: {k: v.tier("ssd")[f"{k}_bytes"] for k in ("inode", "directory", "extent")}
        pieces = [f"piece-{n}" for n in range(1200)]
        for name in pieces:
            v.put(name, 100)
            for at in (40, 80):
                v.change(name, at * BLOCK, name.encode())
        # Names that fill a directory's leaves, files that hold nothing but an inode.
        names = [f"d{n % 20}/{'long' * 40}-{n}" for n in range(9000)]
        for n in range(20):
            os.mkdir(v.path(f"d{n}"))
        for n, name in enumerate(names):
            v.put(name, n % 200)
        until("all kinds lie below", lambda: all(held().values()))
        before = held()
        tally.see("metadata below NVM, bytes", True, before)
        v.is_right(tally, "with metadata below")
        v.kill()
        v.is_right(tally, "after kill -9")
        v.again()
        v.is_right(tally, "mounted again")
        shale("pin", v.path("big"), "--unpin")
        v.remove("big")
        shale("digest", v.mount)
        for _ in range(4):
            for name in names + pieces:
                os.utime(v.path(name), (n, n))
        for n in range(20):
            v.put(f"d{n}/new", 10)
        for name in pieces:
            v.change(name, 41 * BLOCK, b"changed")
        shale("digest", v.mount)
        after = held()
        tally.see("with room and use it returns, bytes", all(after[k] < before[k] for k in after), after)
        v.is_right(tally, "then")
        v.down()
        tally.see("fsck", True, v.fsck().strip().splitlines()[-1])


STEPS = [joined, zones, flash, migration, reading, metadata, verbs, shares, evacuation, trouble]


def main():
    known = {step.__name__: step for step in STEPS}
    tally = Tally()
    for name in sys.argv[1:] or known:
        if name not in known:
            sys.exit(f"unknown: {name} (known: {', '.join(known)})")
        print(f"== {name}: {known[name].__doc__.splitlines()[0]}", flush=True)
        begun = time.monotonic()
        try:
            known[name](tally)
        except (Failed, OSError, subprocess.SubprocessError, KeyError, IndexError, StopIteration) as e:
            tally.see(f"{name} ended early", False, repr(e))
        print(f"   {time.monotonic() - begun:.0f} s", flush=True)
    print(f"{tally.good} passed, {tally.bad} failed")
    sys.exit(tally.bad > 0)


if __name__ == "__main__":
    main()
