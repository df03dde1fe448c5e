//! Failures about the authority and the certificates of a cluster.

use ostraca_codes::codes;
use ostraca_wire::identity::IdentityError;

use crate::failure::Failure;

pub(super) fn not_an_authority(error: IdentityError) -> Failure {
    invalid_identity(error).help("--ca is the directory `ca` that the first node's `ostraca init` created, with ca.pem and ca.key")
}

pub(super) fn invalid_identity(error: IdentityError) -> Failure {
    Failure::usage(codes::INVALID_IDENTITY, error.to_string())
}
