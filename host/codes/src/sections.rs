//! The rows: one file per section of the page.

use crate::Section;

/// Creates a constant and a row for each code. A code without `outcome:` has the section's outcome; a code without
/// `exit:` has no exit code.
macro_rules! section {
    (
        class: $class:ident,
        outcome: $default:ident,
        codes: {
            $(
                $name:ident = $text:literal {
                    $(outcome: $outcome:ident,)?
                    retry: $retry:ident $(($condition:literal))?,
                    $(exit: $exit:literal,)?
                    happened: $happened:literal,
                    help: $help:literal,
                }
            )*
        }
    ) => {
        pub(super) const SECTION: crate::Section = crate::Section {
            class: crate::Class::$class,
            codes: &[$(codes::$name,)*],
        };

        pub(super) mod codes {
            use crate::{Class, Code, Outcome, Retry, Row};

            $(
                #[doc = concat!("`", $text, "`. ", $happened)]
                pub const $name: Code = Code(&Row {
                    name: $text,
                    class: Class::$class,
                    outcome: section!(@or Outcome::$default $(, Outcome::$outcome)?),
                    retry: Retry::$retry $(($condition))?,
                    exit: section!(@or None $(, Some($exit))?),
                    happened: $happened,
                    help: $help,
                });
            )*
        }
    };
    (@or $default:expr) => { $default };
    (@or $default:expr, $value:expr) => { $value };
}

mod client;
mod closing;
mod command_line;
mod connecting;
mod deploying;
mod entity;
mod gateway;
mod guest;
mod shard;
mod starting;
mod status;

/// The whole table, in the order of `docs/errors.md`.
pub const SECTIONS: [Section; 11] = [
    gateway::SECTION,
    shard::SECTION,
    guest::SECTION,
    entity::SECTION,
    client::SECTION,
    deploying::SECTION,
    connecting::SECTION,
    closing::SECTION,
    starting::SECTION,
    status::SECTION,
    command_line::SECTION,
];

/// The codes, as constants.
pub mod codes {
    pub use super::client::codes::*;
    pub use super::closing::codes::*;
    pub use super::command_line::codes::*;
    pub use super::connecting::codes::*;
    pub use super::deploying::codes::*;
    pub use super::entity::codes::*;
    pub use super::gateway::codes::*;
    pub use super::guest::codes::*;
    pub use super::shard::codes::*;
    pub use super::starting::codes::*;
    pub use super::status::codes::*;
}
