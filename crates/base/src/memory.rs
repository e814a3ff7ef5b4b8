//! Checks the memory that loading takes, so that an error comes before the system ends the process.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use candle_blocks_kernels::memory;

use crate::error::{Error, Result};

thread_local! {
    /// The path that this thread loads, which code for packing does not know.
    static LOADED: RefCell<PathBuf> = RefCell::default();
}

/// Runs a load from a file or directory, which errors then name.
pub fn loading<T>(path: &Path, work: impl FnOnce() -> candle_core::Result<T>) -> Result<T> {
    let before = LOADED.replace(path.to_path_buf());
    let result = work();
    LOADED.set(before);
    Ok(result?)
}

/// [`check_next`] for a packed weight of `n_bytes`, whose scales and padding take at most an eighth more.
pub fn check_packing(n_bytes: usize) -> Result<()> {
    check_next(n_bytes.saturating_add(n_bytes / 8))
}

/// [`check_next`] for `n_bytes` that a pass allocates, and its small allocations, which cannot fail.
pub fn check_pass(n_bytes: usize) -> Result<()> {
    check_next(memory::tried_in_a_pass(n_bytes))
}

/// # Errors
/// If the system would not give `n_bytes` more at once. A system may promise more than the machine has, so that large
/// sizes are compared with that too.
pub fn check_next(n_bytes: usize) -> Result<()> {
    const LARGE: usize = 1 << 30;
    if n_bytes >= LARGE {
        LOADED.with_borrow(|path| check_all(path, n_bytes as u64))?;
    }
    match memory::is_there(n_bytes) {
        true => Ok(()),
        false => Err(refused(&LOADED.with_borrow(PathBuf::clone), n_bytes)),
    }
}

/// Returns the error for an allocation that the system refused.
pub fn refused(path: &Path, n_bytes: usize) -> Error {
    let process_limits = limits().into_iter().filter(|limit| limit.is_of_process);
    let available = process_limits.map(|limit| (limit.most.saturating_sub(limit.held), limit.name));
    let available = available.min();
    Error::OutOfMemory {
        path: path.to_path_buf(),
        needed: n_bytes as u64,
        allowed: available.map(|(allowed, _)| allowed),
        limit: available.map_or("the system", |(_, name)| name).to_string(),
    }
}

/// # Errors
/// If `needed` bytes exceed a limit, even if the allocator reuses all memory that the process holds.
pub fn check_all(path: &Path, needed: u64) -> Result<()> {
    let available = limits()
        .into_iter()
        .map(|limit| (limit.most.saturating_sub(limit.fixed), limit.name));
    match available.min() {
        Some((allowed, limit)) if needed > allowed => Err(Error::OutOfMemory {
            path: path.to_path_buf(),
            needed,
            allowed: Some(allowed),
            limit: limit.to_string(),
        }),
        _ => Ok(()),
    }
}

/// A limit on the number of bytes.
#[derive(Debug, PartialEq)]
struct Limit {
    name: &'static str,
    most: u64,
    /// True for the process's own limit, which refuses an allocation when it is made instead of when it is written.
    is_of_process: bool,
    /// The bytes that the process has.
    held: u64,
    /// The part that its allocator cannot reuse, at least.
    fixed: u64,
}

/// Returns the limit of a 32-bit process. Others are known on Linux only.
#[cfg(not(target_os = "linux"))]
fn limits() -> Vec<Limit> {
    let most = u64::try_from(usize::MAX).unwrap_or(u64::MAX);
    let addresses = Limit {
        name: "a 32-bit program",
        most,
        is_of_process: true,
        held: 0,
        fixed: 0,
    };
    (most < u64::MAX).then_some(addresses).into_iter().collect()
}

#[cfg(target_os = "linux")]
fn limits() -> Vec<Limit> {
    linux::limits(Path::new("/"))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{fs, path::Path};

    use super::Limit;

    /// Memory in a process that its allocator does not reuse: stacks, tables, the program's own data.
    const OWN: u64 = 4 << 20;

    /// Reads the limits from the system's files, which are below `root`.
    pub(super) fn limits(root: &Path) -> Vec<Limit> {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let status = text("proc/self/status");
        let status = |key| kib(&status, key).unwrap_or(0);
        let process_limits = text("proc/self/limits");
        let number = |key: &str| {
            let line = process_limits
                .lines()
                .find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let address_space = number("Max address space").map(|most| Limit {
            name: "`ulimit -v`",
            most,
            is_of_process: true,
            held: status("VmSize:"),
            fixed: status("VmExe:") + status("VmLib:"),
        });
        let data = number("Max data size").map(|most| Limit {
            name: "`ulimit -d`",
            most,
            is_of_process: true,
            held: status("VmData:"),
            fixed: 0,
        });

        // What the group or the machine holds is not counted: it may be files that can be evicted, or this process's to use again; but
        // for what any process has of its own.
        let own = status("RssAnon:").min(OWN);
        let meminfo = text("proc/meminfo");
        let swap = kib(&meminfo, "SwapTotal:").unwrap_or(0);
        let with_swap = |name, most: u64| Limit {
            name,
            most: most.saturating_add(swap),
            is_of_process: false,
            held: 0,
            fixed: own,
        };
        let machine = kib(&meminfo, "MemTotal:").map(|most| with_swap("the machine", most));
        let group = text("proc/self/cgroup")
            .lines()
            .filter_map(|line| of_group(root, line))
            .min()
            .map(|most| with_swap("its control group", most));
        [address_space, data, machine, group]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Returns the smallest limit of a control group and its parents, from a line in `/proc/self/cgroup`.
    fn of_group(root: &Path, line: &str) -> Option<u64> {
        let mut parts = line.splitn(3, ':');
        let (number, kinds, group) = (parts.next()?, parts.next()?, parts.next()?);
        let (folder, file) = match kinds.split(',').any(|kind| kind == "memory") {
            true => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            false if number == "0" => ("sys/fs/cgroup", "memory.max"),
            false => return None,
        };
        let groups = Path::new(group.trim_start_matches('/')).ancestors();
        let limits = groups.filter_map(|group| {
            let text = fs::read_to_string(root.join(folder).join(group).join(file)).ok()?;
            text.trim().parse().ok()
        });
        limits.min()
    }

    /// Returns a line in `/proc/self/status` or `/proc/meminfo`, in bytes.
    fn kib(text: &str, key: &str) -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib * 1024)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn written(files: &[(&str, &str)]) -> tempfile::TempDir {
            let root = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            root
        }

        const MEMINFO: (&str, &str) = (
            "proc/meminfo",
            "MemTotal:  16 kB\nMemFree: 1 kB\nSwapTotal:   2 kB\n",
        );

        #[test]
        fn limits_of_a_process_and_its_groups_are_read() {
            let root = written(&[
                (
                    "proc/self/limits",
                    "Limit Soft Limit Hard Limit Units\nMax data size   5000  unlimited  bytes\n\
                     Max address space  90000  unlimited  bytes\n",
                ),
                (
                    "proc/self/status",
                    "VmSize:\t 9 kB\nVmData:\t 4 kB\nVmExe:\t 1 kB\nVmLib:\t 2 kB\n",
                ),
                ("proc/self/cgroup", "3:cpu:/x\n0::/a/b\n"),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/memory.max", "7168\n"),
                MEMINFO,
            ]);
            let found = limits(root.path());
            let found = found
                .iter()
                .map(|limit| (limit.most, limit.held, limit.fixed));
            assert_eq!(
                found.collect::<Vec<_>>(),
                [
                    (90000, 9 << 10, 3 << 10),
                    (5000, 4 << 10, 0),
                    (18 << 10, 0, 0),
                    (9 << 10, 0, 0)
                ]
            );
        }

        #[test]
        fn groups_of_the_first_version_are_read_where_they_are_mounted() {
            let file = "sys/fs/cgroup/memory/memory.limit_in_bytes";
            let groups = ("proc/self/cgroup", "4:cpu,memory:/not/mounted\n0::/\n");
            let root = written(&[groups, (file, "4096\n"), MEMINFO]);
            let found = limits(root.path());
            assert_eq!(found.last().unwrap().most, 6 << 10);
            assert_eq!(found.len(), 2);
        }

        #[test]
        fn nothing_is_limited_where_nothing_is_known() {
            assert_eq!(limits(written(&[]).path()), []);
        }
    }
}
