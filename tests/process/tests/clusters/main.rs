//! What a cluster of real processes does without faults of its machines: membership, moves of shards, rollouts.

mod any_node;
mod authorities;
mod balance;
mod deletion;
mod dry_run;
mod http_kills;
mod joining;
mod lifecycle;
mod manager_rows;
mod monitoring;
mod namespaces;
mod once;
mod order_across;
mod pauses;
mod placement;
mod pools;
mod quotas;
mod revisions;
mod stale_gateways;
mod subscriptions;
mod traces;
mod unrunnable_types;
mod upgrades;
