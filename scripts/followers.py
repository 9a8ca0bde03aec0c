"""Readers that follow a writer on another machine, and whether they ever see a wrong byte.

followers.py write DIR SECONDS     makes, replaces and removes files, each of which is complete when it gets its name
followers.py read DIR SECONDS      reads them all the time; says how many, and how many states were seen

The content of a file follows from its name and its first line. A name that is gone (ENOENT, ESTALE) is no error, nor is a read of a file
that was replaced meanwhile (ESTALE).
"""

import errno
import hashlib
import os
import random
import sys
import time

NAMES = 60


def content(name, version):
    head = f"{name} {version}\n".encode()
    seed = hashlib.sha256(head).digest()
    length = int.from_bytes(seed[:4], "big") % 400_000
    return head + hashlib.shake_128(seed).digest(length)


def write(top, end):
    version = 0
    while time.monotonic() < end:
        version += 1
        name = f"file-{random.randrange(NAMES)}"
        where = os.path.join(top, str(version % 7))
        os.makedirs(where, exist_ok=True)
        path = os.path.join(where, name)
        if version % 5 == 0 and os.path.exists(path):
            os.unlink(path)
            continue
        with open(os.path.join(top, "new"), "wb") as file:
            file.write(content(name, version))
            if version % 3 == 0:
                file.flush()
                os.fsync(file.fileno())
        os.rename(os.path.join(top, "new"), path)
        if version % 20 == 0:
            with open(os.path.join(top, "version"), "w") as file:
                file.write(str(version))
            os.sync()
    print(version)


def read(top, end):
    files = stale = 0
    versions = set()
    while time.monotonic() < end:
        try:
            with open(os.path.join(top, "version")) as file:
                versions.add(file.read())
            for where in os.listdir(top):
                if not where.isdigit():
                    continue
                for name in os.listdir(os.path.join(top, where)):
                    with open(os.path.join(top, where, name), "rb") as file:
                        found = file.read()
                    head = found.split(b"\n", 1)[0].decode().split(" ")
                    assert found == content(head[0], int(head[1])), f"wrong bytes in {where}/{name}: {head}"
                    assert head[0] == name, f"{where}/{name} has the content of {head}"
                    files += 1
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            stale += 1
    print(f"{files} files read, {len(versions)} states seen, {stale} names or states gone")
    assert files > 0 and len(versions) > 2, "nothing was followed"


what, top, seconds = sys.argv[1:4]
{"write": write, "read": read}[what](top, time.monotonic() + float(seconds))
