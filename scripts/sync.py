"""What fsync costs programs: SQLite and git, on one file system; or a table of the rows of several.

sync.py PEER MEDIUM DIR FSBENCH SECONDS     prints rows `medium peer measure value`
sync.py table FILE
"""

import json
import os
import sqlite3
import subprocess
import sys
import time

TRANSACTIONS = 1000
COMMITS = 60


def emit(medium, peer, measure, value):
    print(f"{medium}\t{peer}\t{measure}\t{value:.1f}", flush=True)


def by_fsbench(medium, peer, directory, fsbench, seconds):
    command = [fsbench, "--dir", directory, "--json", "fsync", "--threads", "1,4,16", "--replace", "--secs", seconds]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for row in report["rows"]:
        emit(medium, peer, f"{row['phase']}, operations/s", row["ops_per_s"])
        if row["phase"].endswith("x1") and row.get("latency", {}).get("p50_us") is not None:
            emit(medium, peer, f"{row['phase']}, median us", row["latency"]["p50_us"])


def by_sqlite(medium, peer, directory, mode):
    path = os.path.join(directory, f"{mode}.db")
    base = sqlite3.connect(path, isolation_level=None)
    base.execute(f"PRAGMA journal_mode={mode}")
    base.execute("PRAGMA synchronous=FULL")
    base.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
    begun = time.monotonic()
    for nth in range(TRANSACTIONS):
        base.execute("INSERT INTO t (text) VALUES (?)", (f"{nth} " * 20,))
    emit(medium, peer, f"SQLite {mode}, transactions/s", TRANSACTIONS / (time.monotonic() - begun))
    base.close()


def by_git(medium, peer, directory):
    work = os.path.join(directory, "repository")
    git = ["git", "-C", work, "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "core.fsync=all"]
    subprocess.run(["git", "init", "-q", work], check=True)
    begun = time.monotonic()
    for nth in range(COMMITS):
        with open(os.path.join(work, f"file{nth % 7}"), "w") as file:
            file.write(f"version {nth}\n" * 50)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", f"change {nth}"], check=True)
    emit(medium, peer, "git commit with core.fsync=all, commits/s", COMMITS / (time.monotonic() - begun))


def table(path):
    rows, peers, media = {}, [], []
    with open(path) as file:
        for line in file:
            medium, peer, measure, value = line.rstrip("\n").split("\t")
            rows.setdefault((medium, measure), {}).setdefault(peer, []).append(float(value))
            peers += [peer] if peer not in peers else []
            media += [medium] if medium not in media else []
    others = [peer for peer in peers if peer != "terrane"]
    print(f"| medium | measure | {' | '.join(peers)} | {' | '.join(f'terrane / {peer}' for peer in others)} |")
    print("|---|---|" + "---|" * (len(peers) + len(others)))
    for (medium, measure), found in rows.items():
        middle = {peer: sorted(values)[len(values) // 2] for peer, values in found.items()}
        cells = [f"{middle[peer]:.1f}" if peer in middle else "-" for peer in peers]
        for peer in others:
            both = peer in middle and "terrane" in middle and middle[peer] > 0
            cells.append(f"{middle['terrane'] / middle[peer]:.2f}" if both else "-")
        print(f"| {medium} | {measure} | {' | '.join(cells)} |")


def main():
    if sys.argv[1] == "table":
        table(sys.argv[2])
        return
    peer, medium, directory, fsbench, seconds = sys.argv[1:]
    by_fsbench(medium, peer, directory, fsbench, seconds)
    for mode in ("DELETE", "WAL"):
        by_sqlite(medium, peer, directory, mode)
    by_git(medium, peer, directory)


main()
