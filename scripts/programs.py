#!/usr/bin/env python3
"""Runs what people run on a mounted file system: for bench-programs.sh.

  programs.py PEER DIR WORK   prints a line of JSON
  programs.py table LINES     prints tables of such lines
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time

TICKS = os.sysconf("SC_CLK_TCK")
# Requests that a row of the second table shows by name.
SHOWN = 9


def server(peer, mount):
    """The process that serves the file system, or None."""
    if peer.startswith("zfs"):
        return int(os.environ["ZFS_DAEMON"])
    word = {"terrane": "mount", "null": mount}.get(peer.split("-")[0])
    if word is None:
        return None
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{entry}/cmdline").read().split("\0")
        except OSError:
            continue
        if os.path.basename(words[0]) in ("terrane", "terrane-null") and mount in words and word in words:
            found.append(int(entry))
    # A supervisor holds the mount, and does little else.
    return max(found, key=lambda process: (cpu(process), process), default=None)


def cpu(process):
    if process is None:
        return 0
    fields = open(f"/proc/{process}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def requests(peer):
    """How many requests of each kind the server has answered."""
    if not peer.startswith("terrane"):
        return {}
    text = subprocess.run([os.environ["TERRANE"], "metrics", "bench"], check=True, capture_output=True, text=True).stdout
    found = re.findall(r'^terrane_fuse_request_seconds_count\{.*operation="(\w+)"\} (\d+)$', text, re.M)
    assert found, "the metrics have no requests"
    return {kind: int(count) for kind, count in found}


def files_below(path):
    return sum(len(files) + len(dirs) for _, dirs, files in os.walk(path))


def measure(peer, mount, work):
    tree, copy, clone, built, modules = (os.path.join(mount, name) for name in ("tree", "copy", "clone", "built", "modules"))
    rows = []

    def settle():
        subprocess.run(["sync", "-f", mount], check=True)
        if os.environ.get("SYNC"):
            subprocess.run(os.environ["SYNC"], shell=True, check=True, stdout=subprocess.DEVNULL)

    def row(name, command, path, at=mount, **more):
        """`path`: the files that are there before or after, so that requests can be counted for each."""
        before = files_below(path) if os.path.exists(path) else 0
        settle()
        process = server(peer, mount)
        counts, busy, start = requests(peer), cpu(process), time.perf_counter()
        subprocess.run(command, check=True, cwd=at, stdout=subprocess.DEVNULL, env={**os.environ, **more})
        taken = time.perf_counter() - start
        busy = cpu(process) - busy
        after = files_below(path) if os.path.exists(path) else 0
        sent = {kind: count - counts.get(kind, 0) for kind, count in requests(peer).items()}
        rows.append({"name": name, "seconds": taken, "cpu": busy if process else None, "files": max(before, after),
                     "requests": {kind: count for kind, count in sent.items() if count}})

    os.mkdir(tree)
    row("tar -x", ["tar", "-xf", f"{work}/small.tar", "-C", tree], tree)
    row("cp -a", ["cp", "-a", tree, copy], tree)
    row("find -size, warm", ["find", copy, "-size", "+1M"], copy)
    row("git clone", ["git", "clone", "-q", f"file://{work}/origin.git", clone], clone)
    row("git status", ["git", "status", "--porcelain"], clone, at=clone)
    subprocess.run(os.environ["COLD"], shell=True, check=True, stdout=subprocess.DEVNULL)
    row("git status, cold", ["git", "status", "--porcelain"], clone, at=clone)
    oldest = subprocess.run(["git", "rev-list", "--max-parents=0", "HEAD"], check=True, capture_output=True, text=True, cwd=clone).stdout.split()[-1]
    row("git checkout of the oldest, and back", ["sh", "-c", f"git checkout -q {oldest} && git checkout -q -"], clone, at=clone)
    row("cargo build", ["cargo", "build", "-q", "--offline", "-p", "terrane-store"], built, at=clone, CARGO_TARGET_DIR=built)
    if os.environ["PACKAGES"]:
        os.mkdir(modules)
        row("npm install", ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline",
                            "--cache", os.environ["NPM_CACHE"], *os.environ["PACKAGES"].split()], modules, at=modules)
        row("rm -rf of npm's files", ["rm", "-rf", modules], modules)
    row("rm -rf of the copy", ["rm", "-rf", copy], copy)
    print(json.dumps({"peer": peer, "rows": rows}))


def table(path):
    runs = [json.loads(line) for line in open(path)]
    peers = list(dict.fromkeys(run["peer"] for run in runs))
    names = [row["name"] for row in runs[0]["rows"]]

    def median(peer, name, key):
        values = [row[key] for run in runs if run["peer"] == peer for row in run["rows"] if row["name"] == name]
        values = [value for value in values if value is not None]
        return statistics.median(values) if values else None

    print("Seconds, and in brackets those of the server's processor time:\n")
    print("| |", " | ".join(peers), "| Terrane's speed, x of btrfs-zstd |")
    print("|---" * (len(peers) + 2) + "|")
    for name in names:
        cells = []
        for peer in peers:
            taken, busy = median(peer, name, "seconds"), median(peer, name, "cpu")
            cells.append("" if taken is None else f"{taken:.2f}" + ("" if busy is None else f" ({busy:.2f})"))
        own, other = median("terrane", name, "seconds"), median("btrfs-zstd", name, "seconds")
        cells.append(f"{other / own:.2f}" if own and other else "")
        print("|", name, "|", " | ".join(cells), "|")
    own = [row for run in runs if run["peer"].startswith("terrane") for row in run["rows"]][:len(names)]
    if own:
        print("\nRequests for each file or directory:\n")
        print("| | files | all | of which |\n|---|---|---|---|")
        for row in own:
            files, sent = max(row["files"], 1), sorted(row["requests"].items(), key=lambda kind: -kind[1])
            most = ", ".join(f"{kind} {count / files:.2f}" for kind, count in sent[:SHOWN] if count >= files / 50)
            print(f"| {row['name']} | {row['files']:,} | {sum(row['requests'].values()) / files:.2f} | {most} |")


if __name__ == "__main__":
    if sys.argv[1] == "table":
        table(sys.argv[2])
    else:
        measure(*sys.argv[1:])
