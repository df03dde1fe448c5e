//! Statements whose commit waits for the disk (R4).

/// The beginning of a statement whose commit waits for the disk, whatever the server's default. It must read from
/// `setting`. What turns write waits as [`Durability`](crate::Durability) says.
pub(crate) const DURABLY: &str =
    "WITH setting AS MATERIALIZED (SELECT set_config('synchronous_commit', 'on', true))";
