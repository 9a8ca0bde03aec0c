//! FUSE over io_uring: one system call answers a request and waits for the next one.
//!
//! The kernel has a queue for each processor and hands a request to an *entry* that a server has registered
//! there. Each entry belongs to one thread ([`Lane`]) and has a ring of its own. Its thread runs on the
//! queue's processor, so a request wakes a thread on the processor that it comes from.
//!
//! An entry is two buffers that the kernel writes requests to and reads answers from: headers, and a payload
//! as long as the longest data. A request's parts are joined in place, in front of the payload, so that it
//! parses like one of `/dev/fuse`. FORGET and notifications still go through `/dev/fuse`.
//!
//! Rings die with their process. The kernel cancels what they held, and cannot be made to resend it (decision 34). So
//! a mount that uses them is not handed over ([`crate::session::Negotiated::can_be_taken_over`]).
//!
//! Invariant: the memory of an entry is touched only while the kernel has given it to us, between a
//! completion and the next commit. It is freed only when the kernel has given it back for good.

#![expect(unsafe_code, reason = "rings share memory with the kernel")]

use super::{DevFuse, Received, Transport};
use crate::proto::{InHeader, OutHeader};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use memmap2::MmapMut;
use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `fuse_uring_cmd`: registers an entry and waits for a request.
const REGISTER: u32 = 1;
/// Commits an answer and waits for the next request.
const COMMIT_AND_FETCH: u32 = 2;

const KERNEL_PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

const PAGE: usize = 4096;
/// Sizes and offsets in `fuse_uring_req_header`: the request's or answer's header, the operation's fixed
/// part, the entry's state.
const IN_OUT_BYTES: usize = 128;
const OP_BYTES: usize = 128;
const STATE_AT: usize = IN_OUT_BYTES + OP_BYTES;
const COMMIT_ID_AT: usize = STATE_AT + 8;
const PAYLOAD_LEN_AT: usize = STATE_AT + 16;
const HEADERS_BYTES: usize = STATE_AT + 32;
/// Offset of the payload in an entry's memory. Headers lie at the start, and space to join a request in
/// between.
const PAYLOAD_AT: usize = 2 * PAGE;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// The kernel's `iovec`: address and length.
type Part = [usize; 2];

const _: () = assert!(size_of::<squeue::Entry128>() == 128, "an entry is the kernel's 128 bytes");
const _: () = assert!(size_of::<Part>() == size_of::<libc::iovec>(), "a part is the kernel's iovec");

fn new_ring() -> io::Result<Ring> {
    // Completions run when this thread waits for them, and never interrupt it before.
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(4)
}

/// Whether rings can be used here; if not, why.
pub fn check_available() -> Result<(), String> {
    match std::fs::read_to_string(KERNEL_PARAMETER) {
        Ok(word) if word.trim() == "Y" => {}
        Ok(_) => return Err(format!("{KERNEL_PARAMETER} should be Y, found N")),
        Err(error) => return Err(format!("reading {KERNEL_PARAMETER} failed (needs Linux 6.14): {error}")),
    }
    new_ring().map(drop).map_err(|error| format!("io_uring_setup failed: {error}"))
}

/// The number of queues of the kernel: one for each possible processor.
pub fn queue_count() -> io::Result<u16> {
    let path = "/sys/devices/system/cpu/possible";
    let list = std::fs::read_to_string(path)?;
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<u16>().ok());
    last.and_then(|last| last.checked_add(1))
        .ok_or_else(|| io::Error::other(format!("{path} should be a list of processors, found {list:?}")))
}

/// Pins this thread to one processor. For a processor that does not exist it does nothing.
fn pin_to_cpu(cpu: u16) {
    if usize::from(cpu) >= CpuSet::MAX_CPU {
        return;
    }
    let mut set = CpuSet::new();
    set.set(usize::from(cpu));
    let _ = sched_setaffinity(None, &set);
}

/// An entry's memory, shared with the kernel.
struct EntryMemory {
    memory: MmapMut,
    payload_bytes: usize,
    parts: Box<[Part; 2]>,
}

impl EntryMemory {
    fn new(payload_bytes: usize) -> io::Result<EntryMemory> {
        let mut memory = MmapMut::map_anon(PAYLOAD_AT + payload_bytes)?;
        let start = memory.as_mut_ptr().expose_provenance();
        let parts = Box::new([[start, HEADERS_BYTES], [start + PAYLOAD_AT, payload_bytes]]);
        Ok(EntryMemory { memory, payload_bytes, parts })
    }

    /// All of it. The kernel must have given the entry to us.
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn u32_at(&mut self, at: usize) -> u32 {
        let bytes = self.bytes().get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    }

    fn u64_at(&mut self, at: usize) -> u64 {
        let bytes = self.bytes().get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    }

    /// The request in this entry, in one piece.
    fn request(&mut self) -> io::Result<&[u8]> {
        let (len, payload) = (self.u32_at(0) as usize, self.u32_at(PAYLOAD_LEN_AT) as usize);
        let fixed = len.checked_sub(InHeader::SIZE + payload).filter(|fixed| *fixed <= OP_BYTES);
        let Some(fixed) = fixed.filter(|_| payload <= self.payload_bytes) else {
            let text = format!("ring request malformed: {len} bytes with a payload of {payload}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        let start = PAYLOAD_AT - InHeader::SIZE - fixed;
        let bytes = self.bytes();
        bytes.copy_within(..InHeader::SIZE, start);
        bytes.copy_within(IN_OUT_BYTES..IN_OUT_BYTES + fixed, start + InHeader::SIZE);
        bytes.get(start..start + len).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Writes an answer to where the kernel reads it.
    fn put_answer(&mut self, message: &[u8]) -> io::Result<()> {
        let (header, payload) =
            message.split_at_checked(OutHeader::SIZE).ok_or(io::ErrorKind::InvalidInput)?;
        let len = u32::try_from(payload.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let bytes = self.bytes();
        let pieces = [(0, header), (PAYLOAD_LEN_AT, &len.to_le_bytes()[..]), (PAYLOAD_AT, payload)];
        for (at, piece) in pieces {
            let target = bytes.get_mut(at..at + piece.len()).ok_or(io::ErrorKind::InvalidInput)?;
            target.copy_from_slice(piece);
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryState {
    /// Never registered, or given back for good.
    Idle,
    /// The kernel has it.
    WithKernel,
    /// It holds a request.
    HasRequest,
    /// It holds an answer, to be committed with the next wait.
    HasAnswer,
}

struct Entry {
    ring: Ring,
    /// `None` only while it is dropped.
    memory: Option<EntryMemory>,
    state: EntryState,
}

/// One entry of one queue, and the thread that serves it.
pub struct Lane {
    device: File,
    queue: u16,
    entry: Mutex<Entry>,
    dev_fuse: DevFuse,
}

impl Lane {
    /// Made for the calling thread, which it pins to the queue's processor.
    pub fn new(dev_fuse: &DevFuse, queue: u16, payload_bytes: usize) -> io::Result<Lane> {
        pin_to_cpu(queue);
        let memory = Some(EntryMemory::new(payload_bytes)?);
        let entry = Entry { ring: new_ring()?, memory, state: EntryState::Idle };
        Ok(Lane {
            device: dev_fuse.file().try_clone()?,
            queue,
            entry: Mutex::new(entry),
            dev_fuse: dev_fuse.clone(),
        })
    }

    /// Gives the entry to the kernel, and waits until it holds a request.
    fn exchange(&self, entry: &mut Entry) -> io::Result<Received> {
        let Some(memory) = entry.memory.as_mut() else { return Ok(Received::Ended) };
        let (operation, commit_id) = match entry.state {
            EntryState::Idle => (REGISTER, 0),
            EntryState::HasAnswer => (COMMIT_AND_FETCH, memory.u64_at(COMMIT_ID_AT)),
            // Read and not answered: the session stepped back.
            EntryState::WithKernel | EntryState::HasRequest => return Ok(Received::Ended),
        };
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&commit_id.to_le_bytes());
        command[16..18].copy_from_slice(&self.queue.to_le_bytes());
        let parts = memory.parts.as_ptr() as u64;
        let mut submission = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), operation)
            .cmd(command)
            .addr(Some(parts))
            .build();
        let count = memory.parts.len() as u32;
        // SAFETY: an Entry128 is the kernel's submission entry of 128 bytes (its size is asserted above), whose `len` is the
        // 32-bit word at 24. The crate has no setter for it; REGISTER wants the number of pieces of memory there.
        unsafe { (&raw mut submission).cast::<u8>().add(24).cast::<u32>().write_unaligned(count) };
        // SAFETY: the entry's memory and `parts` live until the kernel has given the entry back: `Lane::drop` leaks them otherwise. The
        // descriptor is open as long as self.
        unsafe { entry.ring.submission().push(&submission) }.map_err(io::Error::other)?;
        entry.state = EntryState::WithKernel;
        let completion = loop {
            match entry.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let Some(completion) = entry.ring.completion().next() {
                break completion;
            }
        };
        match -completion.result() {
            0 => {
                entry.state = EntryState::HasRequest;
                Ok(Received::Request { len: 0 })
            }
            errno => {
                entry.state = EntryState::Idle;
                match errno {
                    libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => {
                        Ok(Received::Ended)
                    }
                    _ => Err(io::Error::from_raw_os_error(errno)),
                }
            }
        }
    }
}

impl Transport for Lane {
    fn receive(&self, buf: &mut [u8]) -> io::Result<Received> {
        let mut entry = self.entry.lock();
        let received = self.exchange(&mut entry)?;
        if received == Received::Ended {
            return Ok(received);
        }
        let Some(memory) = entry.memory.as_mut() else { return Ok(Received::Ended) };
        let request = memory.request()?;
        let len = request.len();
        buf.get_mut(..len).ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(request);
        Ok(Received::Request { len })
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        // Notifications have `unique` 0 and go through `/dev/fuse`.
        if OutHeader::decode(message).is_none_or(|header| header.unique == 0) {
            return self.dev_fuse.send(message);
        }
        let mut entry = self.entry.lock();
        let Some(memory) = entry.memory.as_mut() else { return Ok(()) };
        memory.put_answer(message)?;
        entry.state = EntryState::HasAnswer;
        Ok(())
    }

    fn abort(&self) {
        self.dev_fuse.abort();
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let entry = self.entry.get_mut();
        if entry.state != EntryState::Idle {
            // The kernel may still write there. This leak happens when a thread gives up, once in the life of
            // a mount.
            std::mem::forget(entry.memory.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(len: usize, payload: &[u8], announced: usize) -> EntryMemory {
        let mut memory = EntryMemory::new(PAGE).unwrap();
        let bytes = memory.bytes();
        bytes[..InHeader::SIZE].fill(b'h');
        bytes[..4].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
        bytes[IN_OUT_BYTES..STATE_AT].fill(b'f');
        bytes[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4]
            .copy_from_slice(&u32::try_from(announced).unwrap().to_le_bytes());
        bytes[PAYLOAD_AT..PAYLOAD_AT + payload.len()].copy_from_slice(payload);
        memory
    }

    #[test]
    fn the_parts_of_a_request_become_one() {
        for fixed in [0, 1, 40, OP_BYTES] {
            let len = InHeader::SIZE + fixed + 3;
            let mut memory = filled(len, b"abc", 3);
            let request = memory.request().unwrap();
            assert_eq!(request.len(), len);
            assert!(request[4..InHeader::SIZE].iter().all(|byte| *byte == b'h'));
            assert!(request[InHeader::SIZE..len - 3].iter().all(|byte| *byte == b'f'));
            assert_eq!(&request[len - 3..], b"abc");
        }
    }

    #[test]
    fn requests_that_cannot_be_are_refused() {
        let payload = [b'p'; 100];
        for (len, announced) in
            [(39, 0), (40, 1), (40 + OP_BYTES + 1, 0), (40 + 5000, 5000), (0, usize::MAX >> 33)]
        {
            assert!(filled(len, &payload, announced).request().is_err(), "{len} {announced}");
        }
    }

    #[test]
    fn an_answer_lies_where_the_kernel_looks() {
        let mut memory = EntryMemory::new(PAGE).unwrap();
        let header = OutHeader { len: 19, error: 0, unique: 7 }.encode();
        memory.put_answer(&[&header[..], b"abc"].concat()).unwrap();
        assert_eq!(memory.u32_at(PAYLOAD_LEN_AT), 3);
        assert_eq!(memory.bytes()[..OutHeader::SIZE], header);
        assert_eq!(&memory.bytes()[PAYLOAD_AT..PAYLOAD_AT + 3], b"abc");
        assert!(memory.put_answer(&[0; OutHeader::SIZE + PAGE + 1]).is_err());
        assert!(memory.put_answer(&[0; 3]).is_err());
    }

    #[test]
    fn every_possible_processor_has_a_queue() {
        assert!(usize::from(queue_count().unwrap()) >= std::thread::available_parallelism().unwrap().get());
    }
}
