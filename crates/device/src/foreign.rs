//! Foreign data on a device, recognised by its magic bytes, so that a typing mistake does not destroy it.
//!
//! This is a table, not a set of parsers: it is enough to say "this looks like ext4" and ask for `--force`. Unknown
//! content that is not zero counts as data too. Rows with long magic numbers come before those with two bytes, so
//! that the most specific name wins. A wrong name does no harm, but a missed one would.

use crate::backing::Backing;
use crate::zoned_reader::ZonesInUse;

/// The reference point of a row's offset.
#[derive(Clone, Copy)]
enum Origin {
    Start(u64),
    /// Back from the end of the device.
    End(u64),
}

struct Magic {
    name: &'static str,
    at: Origin,
    bytes: &'static [u8],
}

const fn at_start(name: &'static str, at: u64, bytes: &'static [u8]) -> Magic {
    Magic { name, at: Origin::Start(at), bytes }
}

const fn at_end(name: &'static str, back: u64, bytes: &'static [u8]) -> Magic {
    Magic { name, at: Origin::End(back), bytes }
}

const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
const MDRAID: &[u8] = b"\xfc\x4e\x2b\xa9";

/// Offsets in bytes; magic numbers in the byte order of the medium.
const MAGICS: &[Magic] = &[
    at_start("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    at_start("a LUKS encrypted volume (second header)", 16384, b"SKUL\xba\xbe"),
    at_start("an LVM physical volume", 24, b"LVM2 001"),
    at_start("an LVM physical volume", 512 + 24, b"LVM2 001"),
    at_start("an LVM physical volume", 1024 + 24, b"LVM2 001"),
    at_start("an LVM physical volume", 1536 + 24, b"LVM2 001"),
    at_start("a btrfs file system", 0x10040, b"_BHRfS_M"),
    at_start("a btrfs file system on a zoned drive", 0x40, b"_BHRfS_M"),
    at_start("a bcachefs file system", 4096 + 24, BCACHEFS),
    at_start("a bcache device", 4096 + 24, BCACHE),
    at_start("an XFS file system", 0, b"XFSB"),
    at_start("an f2fs file system", 1024, b"\x10\x20\xf5\xf2"),
    at_start("an EROFS image", 1024, b"\xe2\xe1\xf5\xe0"),
    at_start("swap space", 4086, b"SWAPSPACE2"),
    at_start("swap space", 4086, b"SWAP-SPACE"),
    at_start("swap space", 16374, b"SWAPSPACE2"),
    at_start("swap space", 65526, b"SWAPSPACE2"),
    at_start("a member of an md array", 0, MDRAID),
    at_start("a member of an md array", 4096, MDRAID),
    at_start("a ReiserFS file system", 65588, b"ReIsEr"),
    at_start("a JFS file system", 32768, b"JFS1"),
    at_start("an NTFS file system", 3, b"NTFS    "),
    at_start("an exFAT file system", 3, b"EXFAT   "),
    at_start("a FAT file system", 54, b"FAT12   "),
    at_start("a FAT file system", 54, b"FAT16   "),
    at_start("a FAT file system", 82, b"FAT32   "),
    at_start("an ISO 9660 image", 32769, b"CD001"),
    at_start("a UDF file system", 32769, b"BEA01"),
    at_start("a squashfs image", 0, b"hsqs"),
    at_start("a squashfs image", 0, b"sqsh"),
    at_start("an SQLite database", 0, b"SQLite format 3\0"),
    at_start("a qcow2 image", 0, b"QFI\xfb"),
    at_start("an xz file", 0, b"\xfd7zXZ\0"),
    at_start("a zstd file", 0, b"\x28\xb5\x2f\xfd"),
    at_start("a zip file", 0, b"PK\x03\x04"),
    at_start("a tar archive", 257, b"ustar"),
    at_start("an ELF executable", 0, b"\x7fELF"),
    at_start("a gzip file", 0, b"\x1f\x8b\x08"),
    at_start("a bzip2 file", 0, b"BZh"),
    at_start("a GPT partition table", 512, b"EFI PART"),
    at_start("a GPT partition table", 4096, b"EFI PART"),
    at_end("a GPT partition table (second copy)", 512, b"EFI PART"),
    at_end("a GPT partition table (second copy)", 4096, b"EFI PART"),
    at_start("an ext2, ext3 or ext4 file system", 1024 + 56, b"\x53\xef"),
    at_start("an MBR partition table or boot sector", 510, b"\x55\xaa"),
];

/// Bytes at the start that are searched for nonzero bytes.
pub(crate) const HEAD_BYTES: u64 = 1 << 20;
const TAIL_BYTES: u64 = 64 << 10;

const ZFS_LABEL: u64 = 256 << 10;
const ZFS_RING: u64 = 128 << 10;
const ZFS_UBERBLOCK: [u8; 8] = 0x00ba_b10c_u64.to_le_bytes();

/// Describes the content of the device, to follow the word "found". It is the first signature that matches. Else it
/// is the count of nonzero bytes in the first 1 MiB and last 64 KiB, or the count of nonempty zones of a zoned drive.
/// `None` if there is none of these. A device that cannot be read may hold anything, so it is reported.
pub fn identify_foreign(backing: &Backing) -> Option<String> {
    let unreadable = |error: String| Some(format!("unreadable content ({error})"));
    match find_data(backing.size(), &|at, buf| backing.read_at(at, buf).map_err(|e| e.to_string())) {
        Ok(None) => match backing.zones_in_use() {
            Ok(Some(ZonesInUse { used, count })) if used > 0 => {
                Some(format!("data in {used} of {count} zones"))
            }
            Ok(_) => None,
            Err(error) => unreadable(error.to_string()),
        },
        Ok(found) => found,
        Err(error) => unreadable(error),
    }
}

type ReadAt<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<(), String>;

fn find_data(size: u64, read: ReadAt) -> Result<Option<String>, String> {
    for magic in MAGICS {
        let at = match magic.at {
            Origin::Start(at) => Some(at),
            Origin::End(back) => size.checked_sub(back),
        };
        if let Some(at) = at
            && matches_at(size, read, at, magic.bytes)?
        {
            return Ok(Some(magic.name.into()));
        }
    }
    if has_zfs_uberblock(size, read)? {
        return Ok(Some("a ZFS pool member".into()));
    }
    // Superblocks of old md formats lie a rounded distance before the end.
    let old_md =
        [(size & !0xffff).checked_sub(0x10000), (size / 512).checked_sub(16).map(|s| (s & !7) * 512)];
    for at in old_md.into_iter().flatten() {
        if matches_at(size, read, at, MDRAID)? {
            return Ok(Some("a member of an md array".into()));
        }
    }
    let head = size.min(HEAD_BYTES);
    let tail = size.saturating_sub(TAIL_BYTES).max(head);
    let count = count_nonzero(read, 0, head)? + count_nonzero(read, tail, size)?;
    Ok((count > 0).then(|| format!("{count} nonzero bytes")))
}

fn matches_at(size: u64, read: ReadAt, at: u64, bytes: &[u8]) -> Result<bool, String> {
    let mut found = [0u8; 16];
    let Some(found) = found.get_mut(..bytes.len()) else { return Ok(false) };
    if at.checked_add(bytes.len() as u64).is_none_or(|end| end > size) {
        return Ok(false);
    }
    read(at, found)?;
    Ok(found == bytes)
}

/// Searches for an uberblock, in either byte order, in the rings of the first label and of the third, which is at the
/// end. The slots of a ring have 1 KiB or larger powers of two.
fn has_zfs_uberblock(size: u64, read: ReadAt) -> Result<bool, String> {
    let mut swapped = ZFS_UBERBLOCK;
    swapped.reverse();
    let third = (size & !(ZFS_LABEL - 1)).checked_sub(2 * ZFS_LABEL);
    for label in [Some(0), third].into_iter().flatten() {
        let ring = label + ZFS_RING;
        if ring + ZFS_RING > size {
            continue;
        }
        let mut slots = vec![0u8; 128 << 10];
        read(ring, &mut slots)?;
        if slots.chunks(1024).any(|slot| slot.starts_with(&ZFS_UBERBLOCK) || slot.starts_with(&swapped)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn count_nonzero(read: ReadAt, from: u64, to: u64) -> Result<usize, String> {
    let mut piece = vec![0u8; 64 << 10];
    let (mut at, mut count) = (from, 0);
    while at < to {
        let len = usize::try_from(to - at).map_or(piece.len(), |left| left.min(piece.len()));
        let Some(chunk) = piece.get_mut(..len) else { break };
        read(at, chunk)?;
        count += chunk.iter().filter(|byte| **byte != 0).count();
        at += len as u64;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identify(image: &[u8]) -> Option<String> {
        let read = |at: u64, buf: &mut [u8]| {
            let at = at as usize;
            buf.copy_from_slice(image.get(at..at + buf.len()).ok_or("past the end")?);
            Ok(())
        };
        find_data(image.len() as u64, &read).unwrap()
    }

    fn with(size: usize, at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut image = vec![0; size];
        image[at..at + bytes.len()].copy_from_slice(bytes);
        image
    }

    #[test]
    fn every_row_is_found_by_its_own_name() {
        const SIZE: usize = 2 << 20;
        for magic in MAGICS {
            let at = match magic.at {
                Origin::Start(at) => at as usize,
                Origin::End(back) => SIZE - back as usize,
            };
            assert_eq!(identify(&with(SIZE, at, magic.bytes)).as_deref(), Some(magic.name));
            assert!(magic.bytes.len() <= 16, "{}", magic.name);
        }
    }

    #[test]
    fn a_specific_signature_wins_over_the_boot_sector() {
        for (at, bytes, name) in [
            (3, &b"NTFS    "[..], "an NTFS file system"),
            (82, b"FAT32   ", "a FAT file system"),
            (512, b"EFI PART", "a GPT partition table"),
        ] {
            let mut image = with(1 << 20, at, bytes);
            image[510..512].copy_from_slice(b"\x55\xaa");
            assert_eq!(identify(&image).as_deref(), Some(name));
        }
    }

    #[test]
    fn zfs_is_found_in_any_slot_of_either_label_and_order() {
        const SIZE: usize = (3 << 20) + 5000;
        for at in [128 << 10, (128 << 10) + 1024 * 77, (3 << 20) - (512 << 10) + (128 << 10) + 4096] {
            assert_eq!(identify(&with(SIZE, at, &ZFS_UBERBLOCK)).as_deref(), Some("a ZFS pool member"));
            assert_eq!(
                identify(&with(SIZE, at, &0x00ba_b10c_u64.to_be_bytes())).as_deref(),
                Some("a ZFS pool member")
            );
        }
    }

    #[test]
    fn old_md_superblocks_are_found_near_the_end() {
        let size = (2 << 20) + 4096 + 512;
        for at in [(size & !0xffff) - 0x10000, ((size / 512 - 16) & !7) * 512] {
            assert_eq!(identify(&with(size, at, MDRAID)).as_deref(), Some("a member of an md array"));
        }
    }

    #[test]
    fn only_nonzero_bytes_are_reported() {
        assert_eq!(identify(&[]), None);
        assert_eq!(identify(&[0; 700]), None);
        assert_eq!(identify(&vec![0; 3 << 20]), None);
        assert_eq!(identify(b"\0x\0y").as_deref(), Some("2 nonzero bytes"));
        for at in [0, 5000, (1 << 20) - 1, (3 << 20) - (64 << 10), (3 << 20) - 1] {
            let found = identify(&with(3 << 20, at, &[1]));
            assert_eq!(found.as_deref(), Some("1 nonzero bytes"), "at {at}");
        }
        // Nonzero bytes between head and tail are not found.
        assert_eq!(identify(&with(3 << 20, 1 << 20, &[1])), None);
    }

    #[test]
    fn an_unreadable_device_is_reported() {
        let dir = crate::file::tests::TempDir::new();
        let path = dir.path("short");
        std::fs::write(&path, vec![0; 8192]).unwrap();
        let backing = Backing::open(&path, crate::OpenMode::ReadWrite).unwrap();
        assert_eq!(identify_foreign(&backing), None);
        backing.file().set_len(100).unwrap();
        assert!(identify_foreign(&backing).unwrap().contains("unreadable"));
    }
}
