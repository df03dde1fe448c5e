//! The answer to a caller when a row cannot be read or written.

use ostraca_catalog as catalog;
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::Problem;

/// The answer to a request that failed with this error: what happened, and what to do.
pub(super) fn to_problem(error: catalog::Error) -> Problem {
    let retryable = error.is_retryable();
    let help = match &error {
        catalog::Error::RowConflict(_) => "it was changed concurrently: try again",
        catalog::Error::FormatNotSupported(_) => {
            "update these nodes, or forget lost ones (`ostraca forget`); then retry"
        }
        catalog::Error::TooManySchemas(_) => "deploy with the schema of the current revision",
        _ if retryable => "try again; `ostraca status` shows the store's state",
        _ => "`ostraca status` shows the store's state",
    };
    Problem { retryable, ..problem(error.code(), error.to_string(), help) }
}
