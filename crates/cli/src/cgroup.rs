//! The memory limit of this process's cgroup: a container may use less memory than the machine has.
//!
//! A process is in one cgroup of each hierarchy. `/proc/self/cgroup` names it, and `/proc/self/mountinfo`
//! says where the hierarchy is mounted. A limit of any cgroup on the path to the root binds. In a container
//! the path is often that of the host, of which only the end is mounted; or it leads outside of what is
//! mounted. Then only the mounted part is read.

use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The cgroups that limit the memory of a process, the innermost first.
#[derive(Debug, PartialEq, Eq)]
pub struct Cgroup {
    dirs: Vec<PathBuf>,
}

/// Where a hierarchy is mounted, and which of its directories that mount shows.
struct Mounted<'a> {
    root: &'a str,
    point: &'a str,
}

impl Cgroup {
    /// The cgroups of this process. `root` is `/`, except in tests.
    pub fn of_this_process(root: &Path) -> Cgroup {
        let text = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
        let (own, mounts) = (text("proc/self/cgroup"), text("proc/self/mountinfo"));
        let mut dirs = Vec::new();
        for line in own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            // Version 2 has one hierarchy for all controllers, and names none of them.
            let is_v2 = controllers.is_empty();
            if !is_v2 && !controllers.split(',').any(|name| name == "memory") {
                continue;
            }
            if let Some(mounted) = mounts.lines().find_map(|line| hierarchy(line, is_v2)) {
                dirs.extend(ancestors(root, &mounted, path));
            }
        }
        Cgroup { dirs }
    }

    /// The lowest of all limits, in bytes; `None`: there is none.
    pub fn memory_limit(&self) -> Option<u64> {
        let files = ["memory.max", "memory.high", "memory.limit_in_bytes"];
        let limits = self.dirs.iter().flat_map(|dir| files.iter().map(|name| dir.join(name)));
        // `max` is not a number. Where there is no limit, version 1 gives the largest multiple of a page,
        // which exceeds any machine.
        limits.filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok()).min()
    }

    /// The file in which the kernel reports how long processes of this cgroup wait for memory, its limits
    /// included.
    pub fn pressure_file(&self) -> Option<PathBuf> {
        self.dirs.iter().map(|dir| dir.join("memory.pressure")).find(|path| path.exists())
    }
}

/// The mount of the hierarchy with the memory controller, if this line of mountinfo is about it.
fn hierarchy(line: &str, is_v2: bool) -> Option<Mounted<'_>> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1)?);
    let is_it = match is_v2 {
        true => kind == "cgroup2",
        false => kind == "cgroup" && options.split(',').any(|word| word == "memory"),
    };
    let mut fields = before.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    is_it.then_some(Mounted { root, point })
}

/// The directories of a cgroup and of all its ancestors, as far as they are mounted.
fn ancestors(root: &Path, mounted: &Mounted<'_>, path: &str) -> Vec<PathBuf> {
    let point = root.join(mounted.point.trim_start_matches('/'));
    let below = Path::new(path).strip_prefix(mounted.root).unwrap_or(Path::new(""));
    let below: Vec<&OsStr> = below.components().map(Component::as_os_str).collect();
    // `..`: it is outside of the cgroup namespace, and the mount shows no cgroup of this process.
    let below = if below.iter().any(|name| *name == "..") { Vec::new() } else { below };
    (0..=below.len()).rev().map(|depth| point.join(below.iter().take(depth).collect::<PathBuf>())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with these files.
    fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("terrane-cgroup-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn limit(name: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = tree(name, files);
        let limit = Cgroup::of_this_process(&root).memory_limit();
        fs::remove_dir_all(root).unwrap();
        limit
    }

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_least_limit_on_the_way_up_binds() {
        let files = [
            ("proc/self/cgroup", "0::/a.slice/b.service\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/a.slice/memory.max", "300000000\n"),
            ("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n"),
            ("sys/fs/cgroup/a.slice/b.service/memory.high", "400000000\n"),
            ("sys/fs/cgroup/a.slice/other/memory.max", "1000\n"),
        ];
        assert_eq!(limit("v2", &files), Some(300_000_000));
    }

    #[test]
    fn version_1_has_a_hierarchy_of_its_own_for_memory() {
        let files = [
            ("proc/self/cgroup", "5:devices:/x\n4:memory,hugetlb:/x/y\n0::/z\n"),
            (
                "proc/self/mountinfo",
                "31 23 0:28 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n\
                 32 23 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "209715200\n"),
        ];
        assert_eq!(limit("v1", &files), Some(209_715_200));
    }

    #[test]
    fn a_container_sees_the_end_of_the_way_or_its_own_root() {
        // The host's path, of which the container's directory is mounted.
        let mounted = "32 23 0:29 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let files = [
            ("proc/self/cgroup", "4:memory:/docker/abc/inner\n"),
            ("proc/self/mountinfo", mounted),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "500000000\n"),
            ("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "600000000\n"),
        ];
        assert_eq!(limit("end", &files), Some(500_000_000));
        for own in ["0::/\n", "0::/../elsewhere\n"] {
            let files = [
                ("proc/self/cgroup", own),
                ("proc/self/mountinfo", V2),
                ("sys/fs/cgroup/memory.max", "200000000\n"),
            ];
            assert_eq!(limit("root", &files), Some(200_000_000), "{own}");
        }
    }

    #[test]
    fn without_cgroups_there_is_no_limit() {
        assert_eq!(limit("none", &[("proc/self/cgroup", "garbage\n0::\n::\n")]), None);
        let root = tree(
            "pressure",
            &[
                ("proc/self/cgroup", "0::/a\n"),
                ("proc/self/mountinfo", V2),
                ("sys/fs/cgroup/a/memory.pressure", "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\n"),
            ],
        );
        let file = Cgroup::of_this_process(&root).pressure_file();
        assert_eq!(file, Some(root.join("sys/fs/cgroup/a/memory.pressure")));
        fs::remove_dir_all(root).unwrap();
    }
}
