//! Dead letters, and the commands with which operators resend or drop them (R19).
//!
//! Such a command is a message to the entity that sent the tells, in a client's session, so it runs once, however often
//! it is sent. The shard's machine executes it in a turn that does not call the guest.

/// Maximum number of dead letters that one command may name.
pub const MAX_DEAD_LETTERS: usize = 256;

/// A command stops resending dead letters when their bodies add up to this many bytes: the sender's turn must fit into
/// one commit.
pub(super) const MAX_RESENT_BYTES: usize = 1 << 20;

/// The action of a dead-letter command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterAction {
    /// Resends them, each as a new tell after all others to its target.
    Resend,
    /// Deletes them.
    Drop,
}

impl DeadLetterAction {
    /// The method of the command. No guest can declare it.
    #[must_use]
    pub fn method(self) -> &'static str {
        match self {
            Self::Resend => "\u{1}resend-dead-letters",
            Self::Drop => "\u{1}drop-dead-letters",
        }
    }

    /// The action whose command has this method, if there is one.
    #[must_use]
    pub fn of_method(method: &str) -> Option<Self> {
        [Self::Resend, Self::Drop].into_iter().find(|action| action.method() == method)
    }
}

/// Encodes dead-letter numbers as a command's body or result: 8 bytes each, big-endian.
#[must_use]
pub fn encode_dead_letters(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// Decodes the numbers in a command's body or result. Returns `None` if there are none or more than
/// [`MAX_DEAD_LETTERS`], or if the length is not a multiple of 8.
#[must_use]
pub fn decode_dead_letters(body: &[u8]) -> Option<Vec<u64>> {
    let (numbers, rest) = body.as_chunks::<8>();
    let fits = rest.is_empty() && (1..=MAX_DEAD_LETTERS).contains(&numbers.len());
    fits.then(|| numbers.iter().map(|number| u64::from_be_bytes(*number)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_up_to_the_limit_are_accepted() {
        for count in [1, 2, MAX_DEAD_LETTERS] {
            let numbers: Vec<u64> = (0..count as u64).map(|it| it << 40).collect();
            let body = encode_dead_letters(&numbers);
            assert_eq!(decode_dead_letters(&body), Some(numbers));
            assert_eq!(decode_dead_letters(&body[1..]), None);
        }
        assert_eq!(decode_dead_letters(&[]), None);
        assert_eq!(decode_dead_letters(&encode_dead_letters(&[7; MAX_DEAD_LETTERS + 1])), None);
    }
}
