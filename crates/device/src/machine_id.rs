//! The identity of this machine.

/// A text that identifies this machine and survives a reboot: the machine id. Without one, as in many containers, it
/// is the id of this boot. `None` if the machine has neither.
pub fn machine_id() -> Option<String> {
    ["/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/random/boot_id"].into_iter().find_map(
        |path| {
            let text = std::fs::read_to_string(path).ok()?;
            // An image that is booted for the first time has "uninitialized".
            Some(text.trim().to_owned()).filter(|text| text.len() >= 32)
        },
    )
}
