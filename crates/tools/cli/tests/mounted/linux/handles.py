"""File handles of a mount: `save DIR FILE` writes handles of what is below DIR to FILE; `open DIR FILE`
opens each of them and prints `name: number of the inode, names, path of the directory`, or the error."""
import ctypes, errno, os, pickle, stat, sys

libc = ctypes.CDLL(None, use_errno=True)


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * 128)]


def handle_of(path):
    handle = Handle(bytes=128)
    mount = ctypes.c_int()
    flags = 0
    done = libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), flags)
    if done != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at", path)
    return handle.type, bytes(handle.handle[: handle.bytes])


def open_handle(mount, kind, handle, flags):
    raw = Handle(bytes=len(handle), type=kind)
    raw.handle[: len(handle)] = handle
    fd = libc.open_by_handle_at(mount, ctypes.byref(raw), flags)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd


def save(top, into):
    handles = {}
    for where, dirs, files in os.walk(top):
        for name in dirs + files + ["."]:
            path = os.path.normpath(os.path.join(where, name))
            handles[os.path.relpath(path, top)] = handle_of(path)
    with open(into, "wb") as f:
        pickle.dump(handles, f)


def show(top, kept):
    mount = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    with open(kept, "rb") as f:
        handles = pickle.load(f)
    # All are opened before anything is read: a listing would have the kernel know what is in it.
    opened = {}
    for name, (kind, handle) in sorted(handles.items(), reverse=True):
        try:
            opened[name] = open_handle(mount, kind, handle, os.O_RDONLY)
        except OSError as e:
            opened[name] = errno.errorcode[e.errno]
    for name, fd in sorted(opened.items()):
        if isinstance(fd, str):
            print(f"{name}: {fd}")
            continue
        st = os.fstat(fd)
        said = f"{name}: {st.st_ino} {st.st_nlink}"
        if stat.S_ISDIR(st.st_mode):
            # The directories above were found by `..` of each.
            os.fchdir(fd)
            said += " " + os.path.relpath(os.getcwd(), top) + " " + ",".join(sorted(os.listdir(".")))
            os.chdir("/")
        else:
            said += " " + os.pread(fd, 100, 0).decode()
        os.close(fd)
        print(said)


if __name__ == "__main__":
    {"save": save, "open": show}[sys.argv[1]](*sys.argv[2:])
