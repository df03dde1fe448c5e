//! A model of a cluster whose actors are the production core ([`ostraca_sharding::node::Machine`]), for
//! stateright to go through all its states.
#![allow(missing_docs)]

pub mod model;
pub mod rules;
pub mod scope;
pub mod state;
pub mod time;
pub mod world;
