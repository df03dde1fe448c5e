//! The component of the type `bank-account`.
//!
//! The entity is in a crate of its own (`../account-entity`), so that transfers can use its typed reference without
//! containing its component.

bank_account_entity::export_account!(bank_account_entity::Account);
