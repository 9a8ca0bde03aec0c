#!/usr/bin/env python3
"""The work of bench-snapshots.sh on one mounted file system, and its table.

  snapshots.py PEER DIR FILES SNAPSHOTS COPY_MIB   prints a line of JSON
  snapshots.py table LINES                         prints a table of such lines
"""

import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time

FILE_BYTES = 256 << 20
RECORD = 16 << 10
# Mounts whose median is shown.
REMOUNTS = 5
# Records that are overwritten, and made durable together, between two snapshots.
BETWEEN = 16
ROWS = {
    "copy": "cp of a large file, ms",
    "copy_sync": "the same and sync, ms",
    "command": "a command that does nothing, ms",
    "commit": "write of 4 KiB and fsync, ms",
    "take": "snapshot, ms",
    "txg": "commit, ms",
    "take_ratio": "snapshot, x of a commit, both without the command",
    "overwrite": "overwrites with fsync, MB/s",
    "overwrite_held": "the same while snapshots are taken, MB/s",
    "overwrite_ratio": "ratio",
    "commit_held": "write and fsync with all snapshots, ms",
    "list": "list of all snapshots, ms",
    "take_held": "snapshot with all others held, ms",
    "remount": "mount anew, write 4 KiB and fsync, ms",
    "remount_held": "the same with all snapshots, ms",
    "remount_ratio": "ratio",
    "destroy": "destroying all until their space is free, ms",
    "longest": "longest write and fsync meanwhile, ms",
    "diff": "changes since a snapshot, ms",
}


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def timed(what, *words):
    start = time.perf_counter()
    what(*words)
    return (time.perf_counter() - start) * 1e3


class Terrane:
    def __init__(self, mount):
        self.program, self.data = os.environ["TERRANE"], mount

    def nothing(self):
        run(self.program, "--version")

    def take(self, name):
        run(self.program, "snapshot", f"bench@{name}")

    def commit(self):
        run(self.program, "sync", "bench")

    def destroy(self, names):
        run(self.program, "fs", "destroy", f"bench@{names[0]}%{names[-1]}")

    def list(self):
        run(self.program, "fs", "list", "-t", "snapshot", "bench")

    def diff(self, name):
        run(self.program, "fs", "diff", f"bench@{name}")


class Zfs:
    def __init__(self, mount):
        self.data = mount

    def nothing(self):
        subprocess.run(["zfs", "-?"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def take(self, name):
        run("zfs", "snapshot", f"bench@{name}")

    def destroy(self, names):
        for name in names:
            run("zfs", "destroy", f"bench@{name}")

    def list(self):
        run("zfs", "list", "-t", "snapshot", "-o", "name,used")

    commit = diff = None


class Plain:
    """A file system without snapshots."""

    def __init__(self, mount):
        self.data = mount


class Btrfs:
    def __init__(self, mount):
        self.mount, self.data = mount, os.path.join(mount, "data")
        run("btrfs", "subvolume", "create", self.data)

    def nothing(self):
        run("btrfs", "--version")

    def take(self, name):
        run("btrfs", "subvolume", "snapshot", "-r", self.data, os.path.join(self.mount, name))

    def commit(self):
        run("btrfs", "filesystem", "sync", self.mount)

    def destroy(self, names):
        run("btrfs", "subvolume", "delete", *(os.path.join(self.mount, name) for name in names))
        run("btrfs", "subvolume", "sync", self.mount)

    def list(self):
        run("btrfs", "subvolume", "list", "-s", self.mount)

    def diff(self, name):
        out = subprocess.run(["btrfs", "subvolume", "find-new", os.path.join(self.mount, name), "9999999"],
                             check=True, capture_output=True, text=True).stdout
        run("btrfs", "subvolume", "find-new", self.data, out.split()[-1])


def free_bytes(path):
    stat = os.statvfs(path)
    return stat.f_bfree * stat.f_frsize


def until_free(path):
    """Waits until free space stays the same for a second; returns when it last changed."""
    last, changed = free_bytes(path), time.perf_counter()
    while time.perf_counter() < changed + 1:
        os.sync()
        time.sleep(0.02)
        now = free_bytes(path)
        if now != last:
            last, changed = now, time.perf_counter()
    return changed


class Writer:
    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)
        self.dice = random.Random(7)
        self.noise = self.dice.randbytes(1 << 20)

    def fill(self):
        for at in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(self.file, self.noise, at)
        os.fsync(self.file)

    def small(self):
        os.pwrite(self.file, self.dice.randbytes(4096), self.dice.randrange(64) * 4096)
        os.fsync(self.file)

    def overwrite(self, steps, each):
        """MB/s without the time of what happens between the steps."""
        taken, between = time.perf_counter(), 0
        for step in range(steps):
            for _ in range(BETWEEN):
                at = self.dice.randrange(FILE_BYTES // RECORD) * RECORD
                os.pwrite(self.file, self.dice.randbytes(64) + self.noise[64:RECORD], at)
            os.fsync(self.file)
            between += timed(each, step) / 1e3
        return steps * BETWEEN * RECORD / 1e6 / (time.perf_counter() - taken - between)


def measure_copy(kind, mebibytes):
    source, copy = (os.path.join(kind.data, name) for name in ("source", "copy"))
    noise = random.Random(8).randbytes(1 << 20)
    with open(source, "wb") as file:
        for _ in range(mebibytes):
            file.write(noise)
        file.flush()
        os.fsync(file.fileno())

    def both():
        run("cp", source, copy)
        os.sync()

    found = {"copy": timed(run, "cp", source, copy)}
    os.remove(copy)
    os.sync()
    found["copy_sync"] = timed(both)
    os.remove(copy)
    os.remove(source)
    os.sync()
    return found


def measure(peer, mount, files, snapshots, copied):
    kind = {"terrane": Terrane, "btrfs": Btrfs, "zfs": Zfs}.get(peer.split("-")[0], Plain)(mount)
    found = {"peer": peer, **measure_copy(kind, copied)}
    if isinstance(kind, Plain):
        print(json.dumps(found))
        return
    for number in range(files):
        directory = os.path.join(kind.data, f"d{number // 1000}")
        if number % 1000 == 0:
            os.mkdir(directory)
        os.close(os.open(os.path.join(directory, f"file{number}"), os.O_CREAT | os.O_WRONLY))
    # What is measured by fsync must not lie in a page cache that a remount empties.
    writer = Writer(os.path.join(kind.data, "big"))
    writer.fill()

    def remount():
        os.close(writer.file)
        subprocess.run(["bash", "-c", os.environ["COLD"]], check=True, stdout=subprocess.DEVNULL)
        writer.file = os.open(os.path.join(kind.data, "big"), os.O_RDWR)
        writer.small()

    def remounts():
        return statistics.median(timed(remount) for _ in range(REMOUNTS))

    found["command"] = statistics.median(timed(kind.nothing) for _ in range(11))
    found["commit"] = statistics.median(timed(writer.small) for _ in range(31))
    takes, commits = [], []
    for number in range(31):
        os.pwrite(writer.file, writer.dice.randbytes(4096), 0)
        takes.append(timed(kind.take, f"first{number:02}"))
        if kind.commit:
            os.pwrite(writer.file, writer.dice.randbytes(4096), 0)
            commits.append(timed(kind.commit))
    found["take"] = statistics.median(takes)
    if commits:
        found["txg"] = statistics.median(commits)
        found["take_ratio"] = (found["take"] - found["command"]) / (found["txg"] - found["command"])
    if kind.diff:
        for number in range(100):
            name = os.path.join(kind.data, f"d{number * files // 1000 // 100}", f"new{number}")
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
        os.fsync(writer.file)
        found["diff"] = statistics.median(timed(kind.diff, "first30") for _ in range(5))
    kind.destroy([f"first{number:02}" for number in range(31)])
    until_free(mount)
    found["remount"] = remounts()
    # In turn, so that a machine that is busy for a while does harm to both.
    without, held = [], []
    quarter = snapshots // 4
    for part in range(4):
        without.append(writer.overwrite(quarter, lambda _: None))
        held.append(writer.overwrite(quarter, lambda step: kind.take(f"s{part * quarter + step:06}")))
    found["overwrite"], found["overwrite_held"] = statistics.median(without), statistics.median(held)
    found["overwrite_ratio"] = found["overwrite_held"] / found["overwrite"]
    found["commit_held"] = statistics.median(timed(writer.small) for _ in range(31))
    found["list"] = statistics.median(timed(kind.list) for _ in range(3))
    found["take_held"] = statistics.median(timed(kind.take, f"s{quarter * 4 + step:06}") for step in range(11))
    found["remount_held"] = remounts()
    found["remount_ratio"] = found["remount_held"] / found["remount"]

    longest, ends = [0], threading.Event()

    def write():
        while not ends.is_set():
            longest[0] = max(longest[0], timed(writer.small))

    thread = threading.Thread(target=write)
    thread.start()
    start = time.perf_counter()
    kind.destroy([f"s{number:06}" for number in range(quarter * 4 + 11)])
    ended = time.perf_counter()
    ends.set()
    thread.join()
    found["destroy"] = (max(until_free(mount), ended) - start) * 1e3
    found["longest"] = longest[0]
    os.close(writer.file)
    print(json.dumps(found))


def table(path):
    rows = [json.loads(line) for line in open(path)]
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    print("| |", " | ".join(peers), "|")
    print("|---|" + "---|" * len(peers))
    for key, text in ROWS.items():
        cells = []
        for peer in peers:
            values = [row[key] for row in rows if row["peer"] == peer and key in row]
            cells.append(f"{statistics.median(values):.3g}" if values else "")
        print("|", text, "|", " | ".join(cells), "|")


if __name__ == "__main__":
    if sys.argv[1] == "table":
        table(sys.argv[2])
    else:
        measure(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
