#!/usr/bin/env python3
"""Files that come, change and go while a file system is nearly full, and what they must hold.

  churn.py run DIR MODEL PERCENT ROUNDS   fills DIR to PERCENT, then writes ROUNDS times its size in changes; MODEL says what is there
  churn.py verify DIR MODEL               all of it is right, and nothing else is there

Any error, ENOSPC first, is a failure: nothing here writes more than what `df` offers. SEED repeats a run.
"""

import json
import os
import random
import sys

BLOCK = 64 << 10


# Made once: noise for every block would take longer than writing it.
NOISE = random.Random(0).randbytes((8 << 20) + BLOCK)


def content(seed, length):
    # Blocks that follow each other have nothing in common that would compress.
    at = seed * (BLOCK + 4099) % (8 << 20)
    return (seed.to_bytes(8, "little") + NOISE[at:at + length])[:length]


def free_share(path):
    stat = os.statvfs(path)
    return stat.f_bavail / stat.f_blocks, stat.f_blocks * stat.f_frsize


class Churn:
    """Each file is a list of blocks, each known by a seed and a length."""

    def __init__(self, path, seed):
        self.path, self.dice, self.files, self.names, self.written, self.next = path, random.Random(seed), {}, [], 0, 0

    def full(self, name):
        return os.path.join(self.path, name)

    def block(self, length):
        self.next += 1
        self.written += length
        return [self.next, length]

    def create(self, over=None):
        # Many small ones, most bytes in large ones.
        length = 1 + int(2 ** self.dice.uniform(10, 22.5))
        blocks = [self.block(min(BLOCK, length - at)) for at in range(0, length, BLOCK)]
        name = f"f{self.next}"
        with open(self.full(name), "wb") as out:
            for seed, size in blocks:
                out.write(content(seed, size))
            if self.dice.random() < 0.02:
                os.fsync(out.fileno())
        if over is not None:
            os.rename(self.full(name), self.full(over))
            self.files[over] = blocks
            return
        self.files[name] = blocks
        self.names.append(name)

    def change(self):
        name = self.dice.choice(self.names)
        blocks = self.files[name]
        at = self.dice.randrange(len(blocks))
        blocks[at] = self.block(blocks[at][1])
        with open(self.full(name), "r+b") as out:
            out.seek(at * BLOCK)
            out.write(content(*blocks[at]))

    def cut(self):
        name = self.dice.choice(self.names)
        blocks = self.files[name]
        keep = self.dice.randrange(len(blocks)) + 1
        self.files[name] = blocks[:keep]
        os.truncate(self.full(name), sum(size for _, size in blocks[:keep]))

    def remove(self):
        at = self.dice.randrange(len(self.names))
        self.names[at], self.names[-1] = self.names[-1], self.names[at]
        name = self.names.pop()
        os.unlink(self.full(name))
        return sum(size for _, size in self.files.pop(name))

    def make_room(self, enough):
        removed = 0
        while self.names and removed < enough:
            removed += self.remove()
        # `df` knows of it when it is committed.
        handle = os.open(self.path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    def step(self, keep_free):
        free, size = free_share(self.path)
        if free < keep_free:
            self.make_room(size // 100)
        elif not self.names:
            self.create()
        else:
            kind = self.dice.random()
            if kind < 0.5:
                self.create()
            elif kind < 0.6:
                self.create(over=self.dice.choice(self.names))
            elif kind < 0.9:
                self.change()
            else:
                self.cut()


def run(path, model, percent, rounds):
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"    churn: SEED={seed}")
    churn = Churn(path, seed)
    keep_free = 1 - percent / 100
    size = free_share(path)[1]
    while free_share(path)[0] >= keep_free:
        churn.create()
    filled = churn.written
    while churn.written - filled < rounds * size:
        churn.step(keep_free)
    with open(model, "w") as out:
        json.dump(churn.files, out)
    print(f"    churn: {filled >> 20} MiB to fill, {(churn.written - filled) >> 20} MiB changed, {len(churn.files)} files")


def verify(path, model):
    with open(model) as file:
        files = json.load(file)
    found = set(os.listdir(path))
    wrong = [f"{name} should {'not ' if name in found else ''}be there" for name in sorted(found ^ set(files))]
    for name, blocks in files.items():
        if name in found:
            with open(os.path.join(path, name), "rb") as file:
                if file.read() != b"".join(content(seed, size) for seed, size in blocks):
                    wrong.append(f"{name} holds something else")
    print("\n".join(wrong[:20]) or f"    churn: {len(files)} files are right")
    return not wrong


def main(words):
    match words:
        case ["run", path, model, percent, rounds]:
            run(path, model, int(percent), float(rounds))
        case ["verify", path, model]:
            return verify(path, model)
        case _:
            sys.exit(__doc__)
    return True


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
