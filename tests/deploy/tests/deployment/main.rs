//! Checks the folder `deploy/`.

mod compose;
mod configurations;
mod guide;
mod image;
mod kubernetes;
mod monitoring;
