//! Checks the folder `deploy/`.

mod compose;
mod configurations;
mod image;
mod kubernetes;
