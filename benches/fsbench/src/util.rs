//! Shared pieces: random data, timing helpers, the between-phases hook.

use crate::fail::{Context, Result, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

/// What every workload gets: where to work and how to make the next phase cold.
pub struct Env {
    pub root: PathBuf,
    pub between_cmd: Option<String>,
    pub sync_cmd: Option<String>,
    pub seed: u64,
}

impl Env {
    /// Runs the between-phases hook, if any, and returns the seconds it took.
    /// No file below `root` may be open here: the hook may unmount it.
    pub fn run_hook(&self, phase: &str) -> Result<f64> {
        let Some(cmd) = &self.between_cmd else {
            return Ok(0.0);
        };
        let start = Instant::now();
        shell(cmd, phase).with_context(|| format!("--between-cmd before phase {phase}"))?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// syncfs on the file system under test, or an equivalent.
    pub fn sync(&self) -> Result<()> {
        if let Some(cmd) = &self.sync_cmd {
            return shell(cmd, "").context("--sync-cmd");
        }
        let dir = File::open(&self.root)?;
        rustix::fs::syncfs(&dir).context("syncfs")?;
        Ok(())
    }

    /// Bytes in use and bytes available according to statvfs.
    pub fn usage(&self) -> Result<Usage> {
        let s = rustix::fs::statvfs(&self.root).context("statvfs")?;
        Ok(Usage { used: (s.f_blocks - s.f_bfree) * s.f_frsize, avail: s.f_bavail * s.f_frsize })
    }

    pub fn rng(&self, stream: u64) -> Rng {
        Rng(self.seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95))
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub used: u64,
    pub avail: u64,
}

fn shell(cmd: &str, phase: &str) -> Result<()> {
    let status = Command::new("sh")
        .args(["-c", cmd])
        .env("FSBENCH_NEXT_PHASE", phase)
        .stdout(std::process::Stdio::null())
        .status()?;
    ensure!(status.success(), "{cmd}: {status}");
    Ok(())
}

/// The output of a shell command.
pub fn output_of(cmd: &str) -> Result<String> {
    let output = Command::new("sh").args(["-c", cmd]).stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{cmd}: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }

    /// Incompressible bytes.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Text-like bytes, compressible about threefold even in small pieces.
    pub fn fill_text(&mut self, buf: &mut [u8]) {
        const WORDS: [&str; 16] = [
            "block ",
            "zone ",
            "checksum ",
            "tree ",
            "extent ",
            "inode ",
            "commit ",
            "sync\n",
            "struct ",
            "return ",
            "pointer ",
            "static ",
            "void ",
            "const ",
            "length ",
            "int ",
        ];
        let mut at = 0;
        while at < buf.len() {
            let word = WORDS[self.below(16) as usize].as_bytes();
            let n = word.len().min(buf.len() - at);
            buf[at..at + n].copy_from_slice(&word[..n]);
            at += n;
        }
    }
}

/// Outcome of a timed batch.
#[derive(Default)]
pub struct Timed {
    pub secs: f64,
    pub ops: u64,
    pub bytes: u64,
    pub lat: Vec<u64>,
}

impl Timed {
    pub fn row(self, phase: impl Into<String>) -> crate::report::Row {
        crate::report::Row::new(phase, self.ops, self.bytes, self.secs).latency(self.lat)
    }
}

/// Runs `op` over `items`, split in contiguous parts over `threads`, timing each
/// call. `op` returns the bytes it moved. The time runs from the first start to the
/// last end seen by the workers: on a busy machine the spawning thread wakes too late.
pub fn parallel<T, F>(threads: usize, items: &[T], op: F) -> Result<Timed>
where
    T: Sync,
    F: Fn(&T) -> Result<u64> + Sync,
{
    let threads = threads.clamp(1, items.len().max(1));
    let part = items.len().div_ceil(threads).max(1);
    let barrier = Barrier::new(threads);
    let work = |mine: &[T]| -> Result<(Timed, Instant, Instant)> {
        let mut t = Timed { lat: Vec::with_capacity(mine.len()), ..Timed::default() };
        barrier.wait();
        let start = Instant::now();
        for item in mine {
            let one = Instant::now();
            t.bytes += op(item)?;
            t.lat.push(one.elapsed().as_nanos() as u64);
        }
        Ok((t, start, Instant::now()))
    };
    std::thread::scope(|scope| {
        let part_of = |t: usize| &items[(t * part).min(items.len())..((t + 1) * part).min(items.len())];
        let handles: Vec<_> = (0..threads)
            .map(|t| {
                let (work, mine) = (&work, part_of(t));
                scope.spawn(move || work(mine))
            })
            .collect();
        let (mut total, mut span) = (Timed::default(), None::<(Instant, Instant)>);
        for handle in handles {
            let (t, start, end) = handle.join().expect("worker panicked")?;
            total.bytes += t.bytes;
            total.lat.extend(t.lat);
            span = Some(span.map_or((start, end), |(s, e)| (s.min(start), e.max(end))));
        }
        total.ops = total.lat.len() as u64;
        total.secs = span.map_or(0.0, |(s, e)| (e - s).as_secs_f64());
        Ok(total)
    })
}

/// Runs `f` and returns its result and the seconds it took.
pub fn timed<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let value = f()?;
    Ok((value, start.elapsed().as_secs_f64()))
}

/// Creates `dirs` numbered directories below `root/name` and returns them.
pub fn make_dirs(env: &Env, name: &str, dirs: usize) -> Result<Vec<PathBuf>> {
    let top = env.path(name);
    (0..dirs.max(1))
        .map(|d| {
            let dir = top.join(format!("d{d:05}"));
            fs::create_dir_all(&dir).with_context(|| format!("mkdir {}", dir.display()))?;
            Ok(dir)
        })
        .collect()
}

/// Paths of `count` objects spread in contiguous runs over `dirs`.
pub fn spread(dirs: &[PathBuf], count: usize, prefix: &str) -> Vec<PathBuf> {
    let per = count.div_ceil(dirs.len()).max(1);
    (0..count).map(|i| dirs[i / per].join(format!("{prefix}{i:07}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_visits_everything_once() {
        let items: Vec<u64> = (0..101).collect();
        let sum = std::sync::atomic::AtomicU64::new(0);
        let t = parallel(4, &items, |x| {
            sum.fetch_add(*x, std::sync::atomic::Ordering::Relaxed);
            Ok(1)
        })
        .unwrap();
        assert_eq!((t.ops, t.bytes, sum.into_inner()), (101, 101, 5050));
        assert_eq!(parallel(4, &[] as &[u64], |_| Ok(0)).unwrap().ops, 0);
    }

    #[test]
    fn spread_uses_every_directory() {
        let dirs = vec![PathBuf::from("a"), PathBuf::from("b")];
        let paths = spread(&dirs, 4, "f");
        assert!(paths[1].starts_with("a") && paths[2].starts_with("b"));
    }

    #[test]
    fn shuffle_is_a_permutation_and_reproducible() {
        let mut a: Vec<u32> = (0..50).collect();
        let mut b = a.clone();
        Rng(7).shuffle(&mut a);
        Rng(7).shuffle(&mut b);
        assert_eq!(a, b);
        a.sort_unstable();
        assert_eq!(a, (0..50).collect::<Vec<_>>());
    }
}
