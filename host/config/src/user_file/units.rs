//! Quantities as people write them: `"16 MiB"`, `"100 ms"`. A number without a unit is refused.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error, Visitor};

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Formats a size in bytes.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let fits = |(_, unit): &&(&str, u64)| bytes >= *unit && bytes.is_multiple_of(*unit);
    match UNITS.iter().find(fits) {
        Some((name, unit)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

/// Parses a size in bytes; `None` if it is none.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (name, unit) = UNITS.iter().find(|(name, _)| text.ends_with(name))?;
    text.strip_suffix(name)?.trim_end().parse::<u64>().ok()?.checked_mul(*unit)
}

/// Formats a duration in the largest unit that expresses it as a whole number.
#[must_use]
pub fn format_duration(time: Duration) -> String {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    match [(3_600_000, "h"), (60_000, "min"), (1_000, "s")]
        .iter()
        .find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit))
    {
        Some((unit, name)) => format!("{} {name}", ms / unit),
        None => format!("{ms} ms"),
    }
}

/// Parses a duration as it is written in a configuration.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let time = humantime::parse_duration(text).ok()?;
    // Durations are counted in milliseconds: a fraction would silently become zero.
    time.as_nanos().is_multiple_of(1_000_000).then_some(time)
}

struct Unit<T> {
    read: fn(&str) -> Option<T>,
    example: &'static str,
}

impl<T> Visitor<'_> for Unit<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.example)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).ok_or_else(|| E::custom(format!("{text:?} is not {}", self.example)))
    }
}

/// For `#[serde(with)]`: bytes in a `u64`.
pub(crate) mod size {
    use super::{Deserializer, Unit, format_size, parse_size};

    pub(crate) fn serialize<S: serde::Serializer>(it: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format_size(*it))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let example = "a size in quotes, such as \"16 MiB\" (B, KiB, MiB, GiB)";
        from.deserialize_str(Unit { read: parse_size, example })
    }
}

/// For `#[serde(with)]`: bytes in an `Option<u64>`, which is left out if there is none.
pub(crate) mod optional_size {
    use super::{Deserializer, size};

    pub(crate) fn serialize<S: serde::Serializer>(
        it: &Option<u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match it {
            Some(bytes) => size::serialize(bytes, to),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        size::deserialize(from).map(Some)
    }
}

/// For `#[serde(with)]`: a `Duration`, in whole milliseconds.
pub(crate) mod duration {
    use super::{Deserializer, Duration, Unit, format_duration, parse_duration};

    pub(crate) fn serialize<S: serde::Serializer>(it: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format_duration(*it))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let example = "a time in quotes, such as \"100 ms\" (ms, s, min, h)";
        from.deserialize_str(Unit { read: parse_duration, example })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_trip_through_their_text() {
        for bytes in [0, 1, 1023, 1024, 1025, 16 << 20, 3 << 30] {
            assert_eq!(parse_size(&format_size(bytes)), Some(bytes));
        }
        assert_eq!(parse_size("16MiB"), Some(16 << 20));
        for bad in ["", "16", "MiB", "1.5 MiB", "-1 B", "16 MB", "99999999999 GiB"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_round_trip_through_their_text() {
        for ms in [0, 1, 100, 999, 1_000, 120_000, 3_600_000] {
            let time = Duration::from_millis(ms);
            assert_eq!(parse_duration(&format_duration(time)), Some(time));
        }
        assert_eq!(parse_duration("2 min"), Some(Duration::from_secs(120)));
        for bad in ["", "100", "1 fortnight", "-1 s", "10 us"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
