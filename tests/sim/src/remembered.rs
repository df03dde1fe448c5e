//! Remembered entities in the simulated clusters: which turns change the mark, and the check that head and mark agree
//! (K31).

use ostraca_core::ids::Entity;
use ostraca_core::records::RecordKey;

use crate::rng::Rng;
use crate::store::Image;
use crate::violation::{Violation, ViolationKind};

/// Whether a turn remembers or forgets its entity.
pub(crate) fn by_turn(rng: &mut Rng) -> Option<bool> {
    match rng.range(0, 100) {
        0..20 => Some(true),
        20..26 => Some(false),
        _ => None,
    }
}

/// The entities with a mark.
pub(crate) fn marked(image: &Image) -> impl Iterator<Item = &Entity> {
    let marks = image.records.keys().filter(|(_, key)| *key == RecordKey::Remembered);
    marks.map(|(entity, _)| entity)
}

/// Checks that each head agrees with its mark.
pub(crate) fn check(image: &Image) -> Vec<Violation> {
    let differs = |(entity, head): &(&Entity, &ostraca_core::records::Head)| {
        let mark = ((*entity).clone(), RecordKey::Remembered);
        head.remembered != image.records.contains_key(&mark)
    };
    let violation = |(entity, head): (&Entity, &ostraca_core::records::Head)| {
        let why = format!("{entity}: remembered is {} in the head only", head.remembered);
        ViolationKind::MarkWrong.because(why)
    };
    image.heads.iter().filter(differs).map(violation).collect()
}
