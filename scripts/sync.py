"""What fsync costs programs on one file system; or a table of the rows of several.

sync.py measure PEER MEDIUM DIR FSBENCH SECONDS ROWS     prints lines `medium peer measure value better`, tabs between them
sync.py package FILE                                     makes the package that the row dpkg installs
sync.py table FILE

bench-peer.sh runs the first, and has set IMG, WORK, SYNC, ZFS_DAEMON and TERRANE_STATE_DIR. TERRANE and PACKAGE name files.
"""

import glob
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

TRANSACTIONS, COMMITS, PACKAGED = 10_000, 200, 1_000


def run(*words, **more):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more).stdout


class Missing(Exception):
    """What a row needs and is not here."""


def needed(program):
    if shutil.which(program) is None:
        raise Missing(f"{program} is not installed")


def until(seconds, rounds, one):
    """Does it so many times, or until the time is over; how many times in a second."""
    begun, done = time.monotonic(), 0
    while done < rounds and time.monotonic() - begun < seconds:
        one(done)
        done += 1
    return done / (time.monotonic() - begun)


class Measured:
    def __init__(self, peer, medium, directory, fsbench, seconds, rows):
        self.peer, self.medium, self.directory, self.program = peer, medium, directory, fsbench
        self.seconds, self.rows, self.ran = float(seconds), rows.split(","), None

    def emit(self, measure, value, better="more"):
        print(f"{self.medium}\t{self.peer}\t{measure}\t{value:.3f}\t{better}", flush=True)

    def at(self, name):
        return os.path.join(self.directory, name)

    def fsbench(self, *words):
        command = [self.program, "--dir", self.directory, "--json", *map(str, words)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return {row["phase"]: row for row in json.loads(done.stdout)["rows"]}

    # Rows.

    def load(self):
        def busy():
            with open("/proc/stat") as file:
                spent = [int(word) for word in file.readline().split()[1:]]
            return (sum(spent) - spent[3] - spent[4]) / os.sysconf("SC_CLK_TCK")

        before = busy()
        time.sleep(1)
        self.emit("processors that others used before", busy() - before, "-")

    def append(self):
        for phase, row in self.fsyncs().items():
            if phase.startswith("append"):
                self.emit(f"{phase}, operations/s", row["ops_per_s"])
            if phase == "append+fsync x1":
                self.emit(f"{phase}, median us", row["latency"]["p50_us"], "less")

    def replace(self):
        for phase, row in self.fsyncs().items():
            if phase.startswith("replace"):
                self.emit(f"{phase}, operations/s", row["ops_per_s"])

    def fsyncs(self):
        """One run for both rows."""
        words = ("fsync", "--threads", "1,4,16", "--secs", self.seconds, *(["--replace"] if "replace" in self.rows else []))
        self.ran = self.ran or self.fsbench(*words)
        return self.ran

    def bytes(self):
        self.settle()
        before = self.device_bytes()
        appends = self.fsbench("fsync", "--threads", "1", "--secs", self.seconds)["append+fsync x1"]["ops"]
        self.settle()
        self.emit("KiB to the device for an append of 4 KiB, fsync", (self.device_bytes() - before) / 1024 / appends, "less")

    def settle(self):
        """What is put off belongs to the appends, too."""
        run("sync", "-f", self.directory)
        if os.environ.get("SYNC"):
            run("sh", "-c", os.environ["SYNC"])
        if self.peer.startswith("zfs"):
            run("zfs", "snapshot", f"bench@{time.monotonic_ns()}")

    def device_bytes(self):
        image = os.environ["IMG"]
        loop = run("losetup", "-j", image, "-n", "-O", "NAME").split()
        if loop:
            with open(f"/sys/block/{os.path.basename(loop[0])}/stat") as file:
                return int(file.read().split()[6]) * 512
        if self.peer.startswith("terrane"):
            text = run(os.environ["TERRANE"], "metrics", "bench")
            return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("terrane_device_written_bytes_total{"))
        # Pages of files in memory are not counted.
        if self.medium == "ram":
            raise Missing("nothing counts what zfs-fuse writes in memory")
        with open(f"/proc/{os.environ['ZFS_DAEMON']}/io") as file:
            return int(re.search(r"^write_bytes: (\d+)", file.read(), re.M)[1])

    def beside(self):
        words = ("--probes", "append+fsync", "--size", 1 << 20, "--files", 1, "--rewind", 128 << 20, "--secs", 2 * self.seconds)
        row = self.fsbench("latency", "--writers", 2, *words)["append+fsync"]
        self.emit("append+fsync beside two writers, p99 ms", row["latency"]["p99_us"] / 1000, "less")

    def sqlite(self):
        for mode in ("DELETE", "WAL"):
            base = sqlite3.connect(self.at(f"{mode}.db"), isolation_level=None)
            base.execute(f"PRAGMA journal_mode={mode}")
            base.execute("PRAGMA synchronous=FULL")
            base.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
            insert = "INSERT INTO t (text) VALUES (?)"
            rate = until(4 * self.seconds, TRANSACTIONS, lambda nth: base.execute(insert, (f"{nth} " * 20,)))
            self.emit(f"SQLite {mode}, transactions/s", rate)
            base.close()

    def git(self):
        needed("git")
        git = ["git", "-C", self.at("repository"), "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "core.fsync=all"]
        run("git", "init", "-q", self.at("repository"))

        def commit(nth):
            with open(self.at(f"repository/file{nth % 7}"), "w") as file:
                file.write(f"version {nth}\n" * 50)
            run(*git, "add", ".")
            run(*git, "commit", "-q", "-m", f"change {nth}")

        self.emit("git commit with core.fsync=all, commits/s", until(10 * self.seconds, COMMITS, commit))

    def pgbench(self):
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]))
        if not programs or shutil.which("pgbench") is None:
            raise Missing("PostgreSQL is not installed")
        control, data = f"{programs[-1]}/pg_ctl", self.at("pg")
        beside = tempfile.mkdtemp(prefix="bench-sync.")
        shutil.chown(beside, "postgres")
        template = os.path.join(os.environ["WORK"], "pg")

        def pg(*words):
            return run("runuser", "-u", "postgres", "--", "env", f"PGHOST={beside}", *words, cwd="/")

        def start():
            pg(control, "-w", "-t", "120", "-D", data, "-l", f"{beside}/log", "-o", f"-k {beside} -h ''", "start")

        try:
            if os.path.exists(template):
                run("cp", "-a", template, data)
            else:
                os.mkdir(data, 0o700)
                shutil.chown(data, "postgres")
                pg(f"{programs[-1]}/initdb", "-D", data, "--auth=trust", "--no-sync")
                start()
                pg("pgbench", "-q", "-i", "-s", "5", "postgres")
                pg(control, "-w", "-D", data, "stop")
                run("cp", "-a", data, template)
            start()
            said = pg("pgbench", "-n", "-c", "4", "-j", "2", "-T", str(max(1, round(2 * self.seconds))), "postgres")
            self.emit("pgbench, 4 clients, transactions/s", float(re.search(r"^tps = ([\d.]+)", said, re.M)[1]))
        finally:
            if os.path.exists(f"{data}/postmaster.pid"):
                pg(control, "-w", "-D", data, "-m", "fast", "stop")
            shutil.rmtree(beside)

    def rocksdb(self):
        needed("db_bench")
        words = ("--num=1000000", "--value_size=400", "--sync=1", f"--duration={max(1, round(self.seconds))}", "--compression_type=none")
        said = run("db_bench", "--benchmarks=fillrandom", f"--db={self.at('rocksdb')}", *words)
        self.emit("RocksDB with sync=1, writes/s", float(re.search(r"^fillrandom .* (\d+) ops/sec", said, re.M)[1]))

    def dpkg(self):
        needed("dpkg")
        state = self.at("root/var/lib/dpkg")
        for name in ("info", "updates", "triggers"):
            os.makedirs(f"{state}/{name}")
        for name in ("status", "available"):
            open(f"{state}/{name}", "w").close()
        words = [f"--instdir={self.at('root')}", f"--admindir={state}", "--log=/dev/null", "-i", os.environ["PACKAGE"]]
        begun = time.monotonic()
        run("dpkg", *words)
        self.emit(f"dpkg -i, {PACKAGED} files, seconds", time.monotonic() - begun, "less")


def measure(peer, medium, directory, fsbench, seconds, rows):
    measured, failed = Measured(peer, medium, directory, fsbench, seconds, rows), False
    for row in ["load", *measured.rows]:
        try:
            getattr(measured, row)()
        except Missing as missing:
            print(f"*** {row} SKIPPED: {missing} ***", file=sys.stderr)
        # The other rows are worth having.
        except (subprocess.CalledProcessError, OSError, sqlite3.Error, LookupError, TypeError) as error:
            said = f"\n{error.stdout or ''}{error.stderr or ''}" if isinstance(error, subprocess.CalledProcessError) else ""
            print(f"*** {row} on {peer} FAILED: {error}{said[-2000:]} ***", file=sys.stderr)
            failed = True
    return failed


def package(path):
    """Files of 1 to 30 KiB, as programs have them, in 50 directories."""
    source, rng = random.Random(1), random.Random(2)
    words = [bytes(source.choices(b"abcdefghijklmnopqrstuvwxyz", k=source.randrange(2, 12))) for _ in range(2000)]
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        os.mkdir(f"{root}/DEBIAN", 0o755)
        with open(f"{root}/DEBIAN/control", "w") as file:
            file.write("Package: bench-sync\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: files\n")
        for nth in range(PACKAGED):
            directory = f"{root}/usr/share/bench-sync/{nth % 50}"
            os.makedirs(directory, exist_ok=True)
            with open(f"{directory}/file{nth}", "wb") as file:
                file.write(b" ".join(rng.choices(words, k=rng.randrange(150, 4500))))
        run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, path)


def table(path):
    rows, peers, better = {}, [], {}
    with open(path) as file:
        for line in file:
            medium, peer, measure, value, better[measure] = line.rstrip("\n").split("\t")
            rows.setdefault((medium, measure), {}).setdefault(peer, []).append(float(value))
            peers += [peer] if peer not in peers else []
    beside = [peer for peer in ("ext4", "zfs-off") if peer in peers and "terrane" in peers]
    print(f"| medium | measure | {' | '.join(peers)} | {' | '.join(f'beside {peer}' for peer in beside)} |".replace("|  |", "|"))
    print("|---|---|" + "---:|" * (len(peers) + len(beside)))
    for (medium, measure), found in rows.items():
        middle = {peer: sorted(values)[len(values) // 2] for peer, values in found.items()}
        cells = [f"{middle[peer]:,.{0 if middle[peer] >= 100 else 2}f}" if peer in middle else "-" for peer in peers]
        for peer in beside:
            ours, theirs = middle.get("terrane"), middle.get(peer)
            if better[measure] == "less":
                ours, theirs = theirs, ours
            cells.append(f"{ours / theirs:.2f}" if ours and theirs and better[measure] != "-" else "-")
        print(f"| {medium} | {measure} | {' | '.join(cells)} |")
    print("\nbeside: how many times better Terrane is; below 1 it is worse. Of seconds, bytes and latencies less is better.")


def main():
    what, *words = sys.argv[1:]
    sys.exit({"measure": measure, "package": package, "table": table}[what](*words))


main()
