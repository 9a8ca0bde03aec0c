"""A database whose every commit is said once it was acknowledged, and whether it still has them all.

databases.py write KIND PATH              commits until it is killed, or fails; prints the number of each acknowledged commit
databases.py verify KIND PATH LAST        recovers; prints how many commits there are, at least LAST

KIND: `rollback` and `wal` are SQLite, with the level of `synchronous` that makes each commit durable. `rocksdb` is RocksDB with sync=1; its
shared library is enough.
Commit N adds the row N, whose bytes follow from N, and sets a counter to N. So a commit that is there in part is seen, too.
"""

import ctypes
import ctypes.util
import hashlib
import os
import sqlite3
import sys


def content(nth):
    """A few bytes, or some pages, that do not compress."""
    wanted = nth * 7919 % (20000 if nth % 16 == 0 else 600)
    return hashlib.shake_256(str(nth).encode()).digest(wanted + 1)


class Sqlite:
    def __init__(self, path, mode):
        self.base = sqlite3.connect(path, isolation_level=None, timeout=60)
        # The mode of a database stays: opening recovers in the one that it was in.
        found = self.base.execute(f"PRAGMA journal_mode={mode}").fetchone()[0]
        assert found == mode, f"journal_mode is {found}"
        # With a rollback journal, FULL does not sync its removal, which is the commit: a power cut may undo the last one.
        self.base.execute(f"PRAGMA synchronous={'EXTRA' if mode == 'delete' else 'FULL'}")
        self.base.execute("PRAGMA wal_autocheckpoint=100")
        self.base.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, bytes BLOB)")
        self.base.execute("CREATE TABLE IF NOT EXISTS counter (n INTEGER)")
        if self.counter() is None:
            self.base.execute("INSERT INTO counter VALUES (0)")

    def counter(self):
        row = self.base.execute("SELECT n FROM counter").fetchone()
        return row and row[0]

    def commit(self, nth):
        self.base.execute("BEGIN IMMEDIATE")
        self.base.execute("INSERT INTO rows VALUES (?, ?)", (nth, content(nth)))
        self.base.execute("UPDATE counter SET n = ?", (nth,))
        self.base.execute("COMMIT")

    def rows(self):
        found = self.base.execute("PRAGMA integrity_check").fetchall()
        assert found == [("ok",)], found
        return self.base.execute("SELECT n, bytes FROM rows ORDER BY n")


class RocksDb:
    """By the C interface. Integers that are passed without a type are pointers."""

    COUNTER = b"counter"

    def __init__(self, path):
        self.lib = ctypes.CDLL(ctypes.util.find_library("rocksdb"))
        options = self.call("options_create")
        self.call("options_set_create_if_missing", options, ctypes.c_ubyte(1))
        # Tables are written and merged all the time.
        self.call("options_set_write_buffer_size", options, ctypes.c_size_t(256 << 10))
        self.call("options_set_max_bytes_for_level_base", options, ctypes.c_uint64(1 << 20))
        self.base = self.asked("open", options, path.encode())
        self.reading = self.call("readoptions_create")
        self.writing = self.call("writeoptions_create")
        self.call("writeoptions_set_sync", self.writing, ctypes.c_ubyte(1))

    def call(self, name, *arguments):
        function = getattr(self.lib, f"rocksdb_{name}")
        function.restype = ctypes.c_ubyte if name == "iter_valid" else ctypes.c_void_p
        return function(*[ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments])

    def asked(self, name, *arguments):
        error = ctypes.c_char_p()
        answer = self.call(name, *arguments, ctypes.byref(error))
        if error.value:
            raise OSError(error.value.decode())
        return answer

    def counter(self):
        length = ctypes.c_size_t()
        key = self.COUNTER
        found = self.asked("get", self.base, self.reading, key, ctypes.c_size_t(len(key)), ctypes.byref(length))
        return int(ctypes.string_at(found, length.value)) if found else 0

    def commit(self, nth):
        batch = self.call("writebatch_create")
        for key, value in ((b"%012d" % nth, content(nth)), (self.COUNTER, b"%d" % nth)):
            self.call("writebatch_put", batch, key, ctypes.c_size_t(len(key)), value, ctypes.c_size_t(len(value)))
        self.asked("write", self.base, self.writing, batch)
        self.call("writebatch_destroy", batch)

    def rows(self):
        at = self.call("create_iterator", self.base, self.reading)
        self.call("iter_seek_to_first", at)
        length = ctypes.c_size_t()

        def part(name):
            return ctypes.string_at(self.call(f"iter_{name}", at, ctypes.byref(length)), length.value)

        while self.call("iter_valid", at) and part("key") != self.COUNTER:
            yield int(part("key")), part("value")
            self.call("iter_next", at)
        error = ctypes.c_char_p()
        self.call("iter_get_error", at, ctypes.byref(error))
        assert not error.value, error.value


def main():
    what, kind, path = sys.argv[1:4]
    base = RocksDb(path) if kind == "rocksdb" else Sqlite(path, {"rollback": "delete"}.get(kind, kind))
    nth = base.counter()
    if what == "write":
        while True:
            nth += 1
            base.commit(nth)
            os.write(1, b"%d\n" % nth)
    rows = 0
    for row, found in base.rows():
        rows += 1
        assert row == rows, f"row {rows} is not there, the next is {row}"
        assert found == content(row), f"row {row} has other bytes"
    assert rows == nth, f"the counter is {nth}, and there are {rows} rows"
    assert nth >= int(sys.argv[4]), f"commit {sys.argv[4]} was acknowledged, and the last one is {nth}"
    print(nth)


main()
