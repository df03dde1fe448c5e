//! When an entity expires (E17).

use crate::records::Head;

/// Into how many parts a time to live is divided: the expiry is rounded up to such a part, so that only some turns move
/// it, and with it the wake-up.
const PARTS: u64 = 16;

/// Sets the time at which the entity expires after a turn: as the guest says, or as it said before; otherwise from the
/// time to live after a turn of a message or a firing (`is_input`). `utc` is 0 if the node does not know it.
pub(super) fn apply(
    head: &mut Head,
    expiry: Option<Option<u64>>,
    is_input: bool,
    time_to_live: u64,
    utc: u64,
) {
    let is_own = match expiry {
        Some(at) => at.is_some(),
        None => head.has_own_expiry().unwrap_or_default(),
    };
    head.expires_at = match (expiry, head.expires_at) {
        (Some(Some(at)), _) => Some(at),
        (None, at) if is_own => at,
        (_, at) if time_to_live > 0 && (is_input || at.is_none() || expiry.is_some()) => {
            after(at, time_to_live, utc)
        }
        (None, at) if time_to_live > 0 => at,
        _ => None,
    };
    // This fails only if a later release has filled the head with its own fields.
    let set = head.set_own_expiry(is_own);
    debug_assert!(set.is_ok(), "{set:?}");
}

/// When an entity expires after a turn at `utc`, or, if that is not known, after one that ran before the entity expired.
fn after(before: Option<u64>, time_to_live: u64, utc: u64) -> Option<u64> {
    let part = (time_to_live / PARTS).max(1);
    let exact = match utc {
        0 => before?.saturating_add(time_to_live),
        utc => utc.saturating_add(time_to_live),
    };
    Some(exact.checked_next_multiple_of(part).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e17_an_expiry_is_never_early_and_rarely_moves() {
        let mut head = Head::default();
        let mut moved = 0;
        for utc in 10_000..11_600 {
            let before = head.expires_at;
            apply(&mut head, None, true, 1_600, utc);
            let at = head.expires_at.unwrap();
            assert!((utc + 1_600..=utc + 1_700).contains(&at), "{at} after {utc}");
            moved += u32::from(before != Some(at));
        }
        assert_eq!(moved, 17);
        // Neither a hook's turn nor one at an unknown time shortens it.
        let at = head.expires_at;
        apply(&mut head, None, false, 1_600, 99_999);
        assert_eq!(head.expires_at, at);
        apply(&mut head, None, true, 1_600, 0);
        assert!(head.expires_at >= at.map(|at| at + 1_600));
    }

    #[test]
    fn e17_a_guest_decides_when_its_entity_expires() {
        let mut head = Head::default();
        apply(&mut head, Some(Some(50)), true, 1_600, 10_000);
        apply(&mut head, None, true, 1_600, 20_000);
        assert_eq!((head.expires_at, head.has_own_expiry()), (Some(50), Ok(true)));
        apply(&mut head, Some(None), true, 1_600, 20_000);
        assert_eq!((head.expires_at, head.has_own_expiry()), (Some(21_600), Ok(false)));
        apply(&mut head, Some(Some(60)), true, 0, 20_000);
        apply(&mut head, Some(None), true, 0, 20_000);
        assert_eq!(head, Head::default(), "without a time to live it never expires");
        head.expires_at = Some(70);
        apply(&mut head, None, true, 0, 20_000);
        assert_eq!(head.expires_at, None, "the type no longer has a time to live");
    }
}
