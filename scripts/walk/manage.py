"""Steps of the walk through tiers: verbs, shares of clients, devices that come, go and fail."""

import concurrent.futures
import os
import shutil
import subprocess
import sys
import threading
import urllib.request

from walk import MIB, SHALE, THREE, Volume, command, fill, overwrite, shale, until


def verbs(tally):
    """where, pin, device, df, status, top, metrics."""
    with Volume("verbs", "64M", THREE) as v:
        v.up("--metrics", "127.0.0.1:0")
        fill(v, 50, 4 * MIB)
        os.mkdir(v.path("films"))
        v.migrate()
        part = v.where("file-007", "--offset", "2M")
        tally.see("where --offset", len(part) == 1 and part[0]["zone"] is not None, part[0])
        tree = v.where("")
        every = sum(t["bytes"] for t in tree.values() if isinstance(t, dict) and "bytes" in t)
        tally.see("where of the tree adds up", every == 200 * MIB, every)
        shale("pin", v.path("file-007"))
        v.migrate()
        tally.see("pinned to NVM it stays", set(v.tiers_of("file-007")) == {"nvm"}, v.tiers_of("file-007"))
        shale("pin", v.path("films"), "--tier", "hdd")
        v.put("films/one", 4 * MIB)
        v.migrate()
        tally.see("a tree pinned to disk", set(v.tiers_of("films/one")) == {"hdd"}, v.tiers_of("films/one"))
        shale("pin", v.path("file-007"), "--unpin")
        v.migrate()
        tally.see("unpinned it goes", "nvm" not in v.tiers_of("file-007"), v.tiers_of("file-007"))
        new, old = os.path.join(v.below, "new.img"), os.path.join(v.below, "a.img")
        shale("device", "add", v.mount, "--ssd", f"{new}:96M")
        shale("device", "evacuate", v.mount, old)
        tally.see("evacuated", v.of_device(old)["live_bytes"] == 0, v.of_device(old)["state"])
        shale("device", "remove", v.mount, old)
        os.remove(old)
        v.is_right(tally, "on other devices")
        for words in (("df", v.mount), ("status", v.mount), ("top", v.mount, "--once")):
            text = shale(*words)
            tally.see(words[0], all(t in text.lower() for t in ("nvm", "ssd", "hdd")), f"{len(text)} characters")
        with urllib.request.urlopen(f"http://{v.status()['metrics']}/metrics") as answer:
            text = answer.read().decode()
        live = [line for line in text.splitlines() if line.startswith("shale_tier_live_bytes{")]
        tally.see("metrics", len(live) == 3, live)
        v.again()
        v.is_right(tally, "mounted again")


WRITER = """
import sys, time
data, n = bytes(16384), 0
with open(sys.argv[1], 'wb', 0) as f:
    for n in range(512):
        f.seek(n % 256 * 16384); f.write(data)
    n = 0
    sys.stdin.readline()
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        f.seek(n % 256 * 16384); f.write(data); n += 1
print(n * 16384 / float(sys.argv[2]) / 1048576)
sys.stdin.readline()
"""


def shares(tally):
    """One client is limited beside another; the accounts know who wrote what to which tier."""
    with Volume("shares", "128M", [("ssd", "a.img", "256M")]) as v:
        v.up()
        run = lambda name, s: subprocess.Popen(
            [SHALE, "run", "--", sys.executable, "-c", WRITER, v.path(name), str(s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with run("slow", 6) as slow, run("free", 6) as free:
            client = lambda process: next((c for c in v.status()["clients"] if c["pid"] == process.pid), None)
            until("both are clients", lambda: client(slow) and client(free))
            shale("limit", v.mount, "--client", str(slow.pid), "--rate", "4M")
            for process in (slow, free):
                process.stdin.write("\n")
                process.stdin.flush()
            rates = [float(p.stdout.readline()) for p in (slow, free)]
            tally.see("MiB/s of one limited to 4, and of another", rates[0] < 4.5 and rates[1] > 4 * rates[0], rates)
            shale("digest", v.mount)
            v.migrate()
            for what, process, rate in (("limited", slow, rates[0]), ("free", free, rates[1])):
                written = client(process)["written"]
                own = written["log_bytes"] + written["stolen_bytes"]
                tally.see(f"account of the {what} one covers what it wrote", own >= rate * 6 * MIB * 0.99, written)
            sums = sum(c["written"]["ssd_bytes"] for c in v.status()["clients"])
            moved = v.moved()["moved_bytes"]
            tally.see("bytes moved to flash are on accounts", 0 < sums <= moved, f"{sums} of {moved}")
            for process in (slow, free):
                process.stdin.close()


def evacuation(tally):
    """A device is emptied under load, over kill -9, and taken out."""
    with Volume("empties", "96M", THREE) as v:
        v.up()
        fill(v, 40, 4 * MIB)
        v.migrate()
        old = os.path.join(v.below, "a.img")
        v.migrate("--limit", "16M")
        stop = threading.Event()

        def load():
            rounds = 0
            while not stop.is_set():
                overwrite(v, ["file-000", "file-001", "file-002"], 50, rounds)
                rounds += 1
            return rounds

        with concurrent.futures.ThreadPoolExecutor() as pool:
            writer = pool.submit(load)
            try:
                begun = v.of_device(old)["live_bytes"]
                shale("device", "evacuate", v.mount, old, "--background")
                until("a part has moved", lambda: v.of_device(old)["live_bytes"] < begun * 3 / 4)
                v.kill()
                left = v.of_device(old)
                tally.see("killed in the middle: bytes left", left["live_bytes"] > 0, f"{left['live_bytes']} of {begun}")
                tally.see("its state", left["state"] == "emptying", left["state"])
                until("it is empty", lambda: v.of_device(old)["live_bytes"] == 0, 120)
            finally:
                stop.set()
            tally.see("rounds of writing meanwhile, no error", writer.result() > 2, writer.result())
        v.is_right(tally, "with the device empty")
        shale("device", "remove", v.mount, old)
        os.remove(old)
        v.again()
        v.is_right(tally, "without it, mounted again")


def trouble(tally):
    """Devices that vanish, give EIO, or old data, while the volume is mounted."""
    for what in ("a loop device loses its backing", "an image is cut", "old data"):
        devices = [("ssd", "loop:a.img" if "loop" in what else "a.img", "96M"), ("hdd", "c.img", "192M")]
        with Volume("trouble", "64M", devices) as v:
            v.up()
            fill(v, 10, 4 * MIB)
            v.migrate()
            image = os.path.join(v.below, "a.img")
            path = v.loops[0] if v.loops else image
            if what == "old data":
                old = shutil.copy(image, image + ".old")
                for name in list(v.copy):
                    v.put(name, 4 * MIB, seed=name + "anew")
                v.migrate()
                with open(old, "rb") as source, open(image, "r+b") as target:
                    shutil.copyfileobj(source, target)
                os.remove(old)
            else:
                os.truncate(image, MIB)
            if v.loops:
                command("losetup", "-c", v.loops[0])
            # What the kernel still has is no answer of the device.
            with open("/proc/sys/vm/drop_caches", "w", encoding="utf8") as file:
                file.write("3")
            before = list(v.copy)
            fill(v, 20, 4 * MIB, 100)
            v.migrate()
            fresh = [name for name in v.copy if name not in before]
            tally.see(f"{what}: new files wrong", not v.wrong(fresh), len(v.wrong(fresh)))
            lost = v.wrong(before)
            eio = [name for name in lost if name.endswith("Input/output error")]
            tally.see("old ones: right or EIO, never other bytes", lost == eio, f"{len(eio)} of {len(before)} are EIO")
            named = v.of_device(path)
            said = named["trouble"] or (v.status()["bad_blocks"] or [{"why": ""}])[0]["why"]
            tally.see("named", said, f"{path}: {named['state']}: {said}")
            for name in before:
                v.remove(name)
            shale("digest", v.mount)
            fill(v, 5, 4 * MIB, 200)
            tally.see("the rest goes on", not v.wrong(), len(v.copy))
