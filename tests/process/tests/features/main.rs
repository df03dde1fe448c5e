//! What entities can do, on clusters of real processes that fail meanwhile: tells, asks, timers, journals, channels.

mod asks;
mod cart;
mod channels;
mod chat;
mod http;
mod journal;
mod pool_limits;
mod quotas;
mod tell_steps;
mod tells;
mod timers;
mod turn_values;
