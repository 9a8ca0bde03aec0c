//! Which machine this is, as far as it says so itself.

/// A text that another machine does not have, and that this one has after each start as well: the machine id. Where there is none, as in
/// many containers, it is that of this start of the kernel. `None`: the machine says neither.
pub fn host_text() -> Option<String> {
    ["/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/random/boot_id"].into_iter().find_map(
        |path| {
            let text = std::fs::read_to_string(path).ok()?;
            // An image that is started for the first time says "uninitialized".
            Some(text.trim().to_owned()).filter(|text| text.len() >= 32)
        },
    )
}
