//! Real connections of clients and nodes: admission, bad input, budgets, calls and messages between nodes. One program,
//! since each test program would compile the whole of QUIC anew.

mod attacks;
mod budgets;
mod common;
mod identities;
mod peer_calls;
mod peer_messages;
mod peers;
