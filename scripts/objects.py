"""What bench-object.sh measures. Rows are JSON, one a line.

objects.py raw ENDPOINT BUCKET           PUT and GET of 1 GiB in objects of 8 MiB, eight under way: what the store gives
objects.py terrane MOUNTPOINT WORK       a pool of that name that is mounted there; TERRANE_URL is where it is
objects.py s3fs|rclone|juicefs MOUNTPOINT WORK  FOREIGN_MOUNT is the command that mounts it
objects.py table FILE...                 of such rows, as Markdown
"""

import concurrent.futures
import datetime
import hashlib
import hmac
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.parse

GIB = 1 << 30
PART = 8 << 20
LATENCY = os.environ.get("LATENCY_MS", "0")
TERRANE = os.environ.get("TERRANE", "terrane")


def row(who, what, value, unit):
    print(json.dumps({"latency": LATENCY, "who": who, "what": what, "value": value, "unit": unit}), flush=True)


class Client:
    """Signs requests as AWS does (signature version 4), without a hash of the content."""

    def __init__(self, endpoint):
        self.host = urllib.parse.urlparse(endpoint).netloc
        self.local = threading.local()

    def request(self, method, path, body=b""):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{now[:8]}/us-east-1/s3/aws4_request"
        headers = {"host": self.host, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": now}
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        asked = "\n".join([method, path, "", lines, names, "UNSIGNED-PAYLOAD"])
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(asked.encode()).hexdigest()])
        key = ("AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"]).encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), "sha256").digest()
        signature = hmac.new(key, text.encode(), "sha256").hexdigest()
        who = f"{os.environ['AWS_ACCESS_KEY_ID']}/{scope}"
        headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={who}, SignedHeaders={names}, Signature={signature}"
        if not hasattr(self.local, "line"):
            self.local.line = http.client.HTTPConnection(self.host)
        self.local.line.request(method, path, body, headers)
        answer = self.local.line.getresponse()
        found = answer.read()
        assert answer.status in (200, 204), (answer.status, found[:300])
        return found


def raw(endpoint, bucket):
    client, content = Client(endpoint), os.urandom(PART)
    paths = [f"/{bucket}/raw/{number:04}" for number in range(GIB // PART)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for name, call in (("write", lambda path: client.request("PUT", path, content)), ("read", lambda path: client.request("GET", path))):
            begin = time.monotonic()
            list(pool.map(call, paths))
            row("raw", f"1 GiB, {name}", GIB / (1 << 20) / (time.monotonic() - begin), "MiB/s")
        list(pool.map(lambda path: client.request("DELETE", path), paths))


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Terrane:
    name = "terrane"

    def __init__(self, mount):
        self.mount, self.url = mount, os.environ["TERRANE_URL"]

    def cold(self):
        """Nothing of it is in memory. Returns how long the mount took."""
        run(TERRANE, "umount", self.mount)
        begin = time.monotonic()
        run(TERRANE, "mount", self.url, self.mount)
        return time.monotonic() - begin

    def sync(self):
        run(TERRANE, "sync", "bench")

    def requests(self):
        return json.loads(run(TERRANE, "pool", "iostat", "--json", "bench"))["pools"][0]["requests"]


class Foreign:
    """A mount of another program, by the command FOREIGN_MOUNT."""

    def __init__(self, name, mount):
        self.name, self.mount = name, mount

    def cold(self):
        run("umount", self.mount)
        begin = time.monotonic()
        subprocess.run(["bash", "-c", os.environ["FOREIGN_MOUNT"]], check=True, stdin=subprocess.DEVNULL)
        while not os.path.ismount(self.mount):
            time.sleep(0.01)
        return time.monotonic() - begin

    def sync(self):
        """rclone puts files after they were closed, and says when that has ended."""
        while self.name == "rclone":
            stats = json.loads(run("rclone", "rc", "--rc-addr", os.environ["RCLONE_ADDRESS"], "vfs/stats"))["diskCache"]
            queued = [line for line in open(os.environ["RCLONE_LOG"]) if "queuing for upload" in line]
            put = [line for line in open(os.environ["RCLONE_LOG"]) if "Copied (" in line]
            if stats["uploadsInProgress"] == stats["uploadsQueued"] == 0 and len(put) >= len(queued):
                break
            time.sleep(0.05)

    def requests(self):
        return None


def timed(peer, work):
    """Seconds, and requests of each kind, that `work` takes, what is committed of it included."""
    before, begin = peer.requests(), time.monotonic()
    work()
    peer.sync()
    taken, after = time.monotonic() - begin, peer.requests()
    return taken, {kind: after[kind] - before[kind] for kind in after} if after else {}


def measure(peer, work, small):
    top = peer.mount
    large = os.path.join(top, "large")
    noise = os.urandom(64 << 20)

    def write():
        with open(large, "wb") as file:
            for _ in range(GIB // len(noise)):
                file.write(noise)
            os.fsync(file.fileno())

    taken, asked = timed(peer, write)
    row(peer.name, "1 GiB, write", GIB / (1 << 20) / taken, "MiB/s")
    if asked:
        row(peer.name, "1 GiB, write: PUT", asked["put"], "requests")
    row(peer.name, "mount", peer.cold(), "s")

    def read():
        with open(large, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass

    taken, asked = timed(peer, read)
    row(peer.name, "1 GiB, read cold", GIB / (1 << 20) / taken, "MiB/s")
    if asked:
        row(peer.name, "1 GiB, read cold: GET", asked["get"], "requests")
        peer.cold()
        places, count = random.Random(1), 200

        def read_some():
            with open(large, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                for _ in range(count):
                    file.seek(places.randrange(GIB // 16384) * 16384)
                    file.read(16384)

        taken, asked = timed(peer, read_some)
        row(peer.name, "16 KiB, read cold: GET", asked["get"] / count, "requests")
        row(peer.name, "16 KiB, read cold", taken / count * 1000, "ms")
    os.unlink(large)

    where = os.path.join(top, "tree")
    os.mkdir(where)
    tree = sorted(os.listdir(small))
    share = 1 if asked else 20 if LATENCY == "0" else 100
    counts = {name: int(run("bash", "-c", f"find {small}/{name} -type f | wc -l")) for name in tree}
    wanted = sum(counts.values()) / share
    # A directory of about that many files, or all.
    picked = [min(tree, key=lambda name: abs(counts[name] - wanted))] if share > 1 else tree
    files = sum(counts[name] for name in picked)
    taken, asked = timed(peer, lambda: run("bash", "-c", f"tar -C {small} -cf - {' '.join(picked)} | tar -C {where} -xf -"))
    row(peer.name, "unpacking small files", files / taken, "files/s")
    if asked:
        row(peer.name, f"unpacking {files} small files: PUT", asked["put"], "requests")

    listed = os.path.join(top, "thousand")
    os.mkdir(listed)
    for number in range(1000):
        open(os.path.join(listed, f"file-{number}"), "w").close()
        if share > 1 and number >= 99:
            break
    peer.sync()
    if share == 1:
        names = os.path.join(top, "names")
        for number in range(100):
            os.makedirs(os.path.join(names, str(number)))
            for name in range(999):
                os.mknod(os.path.join(names, str(number), f"n{name}"))
        peer.sync()
    peer.cold()
    taken, asked = timed(peer, lambda: run("ls", "-l", listed))
    row(peer.name, f"ls -l of {len(os.listdir(listed))} names, cold", taken * 1000, "ms")
    if asked:
        row(peer.name, "ls -l, cold: GET", asked["get"], "requests")
        peer.cold()
        taken, asked = timed(peer, lambda: run("find", os.path.join(top, "names")))
        row(peer.name, "find of 100,000 names, cold", taken * 1000, "ms")
        row(peer.name, "find, cold: GET", asked["get"], "requests")
        row(peer.name, "mount, 120,000 files", peer.cold(), "s")
        peer.sync()
        time.sleep(6)
        before = peer.requests()
        time.sleep(20)
        row(peer.name, "idle, 20 s", sum(peer.requests()[kind] - before[kind] for kind in ("put", "get", "list", "delete")), "requests")


def table(files):
    rows = [json.loads(line) for file in files for line in open(file)]
    latencies = list(dict.fromkeys(row["latency"] for row in rows))
    print("| | who | " + " | ".join(f"{latency} ms" for latency in latencies) + " |")
    print("|---|---|" + "---:|" * len(latencies))
    for what in dict.fromkeys(row["what"] for row in rows):
        for who in dict.fromkeys(row["who"] for row in rows if row["what"] == what):
            cells = []
            for latency in latencies:
                found = [row for row in rows if (row["what"], row["who"], row["latency"]) == (what, who, latency)]
                cells.append(f"{found[-1]['value']:,.4g} {found[-1]['unit']}" if found else "-")
            print(f"| {what} | {who} | " + " | ".join(cells) + " |")


def main():
    what = sys.argv[1]
    if what == "raw":
        raw(*sys.argv[2:4])
    elif what == "table":
        table(sys.argv[2:])
    else:
        peer = Terrane(sys.argv[2]) if what == "terrane" else Foreign(what, sys.argv[2])
        measure(peer, sys.argv[3], os.path.join(os.environ["CORPUS"], "small"))


main()
