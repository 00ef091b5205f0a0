"""`full_mapping.py DIR SHALE`: stores to pages of a shared mapping on a volume that is full, while another client reads the file.

The pages lie on a lower tier: each that is written needs a block of NVM. Says "stored" if they are what was stored, to
the program, to the other client, and after msync."""

import errno
import mmap
import os
import subprocess
import sys

PAGES, PAGE = 8, 4096
place, shale = sys.argv[1:]
path = f"{place}/mapped"
file = os.open(path, os.O_RDWR | os.O_CREAT)
os.pwrite(file, b"0" * (PAGES * PAGE), 0)
os.fsync(file)
mapping = mmap.mmap(file, PAGES * PAGE)
subprocess.run([shale, "digest", place], check=True, stdout=subprocess.DEVNULL)


def fill(name, bytes_each):
    """Until there is no space."""
    try:
        with open(f"{place}/{name}", "ab", buffering=0) as full:
            while full.write(os.urandom(bytes_each)):
                pass
    except OSError as error:
        assert error.errno == errno.ENOSPC, error


for bytes_each in (1 << 20, PAGE, 1):
    fill("full", bytes_each)
where = subprocess.run([shale, "where", path, "--json"], check=True, capture_output=True, text=True).stdout
assert '"nvm"' not in where, where


def store(word):
    for page in range(PAGES):
        mapping[page * PAGE : page * PAGE + 4] = word


def words(content):
    return {bytes(content[page * PAGE : page * PAGE + 4]) for page in range(PAGES)}


store(b"once")
mapping.flush()
store(b"more")
read = f"""
import os
file = os.open({path!r}, os.O_RDONLY)
for _ in range(2000):
    content = os.pread(file, {PAGES * PAGE}, 0)
print(content[:4].decode())
"""
environment = dict(os.environ, SHALE_WARM_CALLS="0")
other = subprocess.run(
    [shale, "run", "--", sys.executable, "-c", read], env=environment, check=True, capture_output=True, text=True
)
assert other.stdout == "more\n", (other.stdout, other.stderr)
assert words(mapping) == {b"more"}, words(mapping)
mapping.flush()
assert words(os.pread(file, PAGES * PAGE, 0)) == {b"more"}
# Space for some of them.
for word, blocks in ((b"part", 5), (b"next", 9)):
    os.truncate(f"{place}/full", os.path.getsize(f"{place}/full") - blocks * PAGE)
    store(word)
    mapping.flush()
    subprocess.run([shale, "run", "--", sys.executable, "-c", read], env=environment, check=True, stdout=subprocess.DEVNULL)
    assert words(mapping) == {word}, (word, words(mapping))
# Names go all the same.
os.unlink(f"{place}/full")
print("stored")
