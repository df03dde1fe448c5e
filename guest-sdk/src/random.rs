//! Random numbers. They belong to the turn: a message's or a timer's turn that runs again draws the same numbers.
//! Nobody outside the cluster can predict them.

/// Maximum number of bytes that the host returns in one call.
const LIMIT: usize = 64 << 10;

/// Returns a random number.
pub fn u64() -> u64 {
    crate::host::random_u64()
}

/// Returns random bytes.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

/// Fills a slice with random bytes.
pub fn fill(bytes: &mut [u8]) {
    for part in bytes.chunks_mut(LIMIT) {
        part.copy_from_slice(&crate::host::random_bytes(part.len()));
    }
}
