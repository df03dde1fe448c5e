//! The store on real servers of PostgreSQL, which the tests install from Debian's package if they may, start on ports
//! of their own, and stop.

mod clock;
mod conformance;
mod copies;
mod fail_over;
mod faults;
mod full_disk;
mod plans;
mod rows;
