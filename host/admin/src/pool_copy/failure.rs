//! Why a pool was not copied.

use ostraca_codes::codes;
use ostraca_store::StoreError;
use ostraca_store::pool_copy::PoolCopyError;
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::Problem;

use crate::catalog_problem::to_problem;
use crate::store_failed;

const HELP: &str = "do what the text says, and repeat `ostraca pool copy`";

/// Why a pool was not copied.
#[derive(Debug)]
pub(super) enum CopyFailure {
    /// The pools do not fit, or are in use.
    Refused(Box<Problem>),
    /// The state could not be copied.
    Copy(PoolCopyError),
    /// The cluster's rows cannot be read or written.
    Rows(ostraca_catalog::Error),
}

impl CopyFailure {
    pub(super) fn refused(why: impl Into<String>) -> Self {
        Self::Refused(Box::new(problem(codes::POOL_NOT_COPIED, why, HELP)))
    }

    /// Whether the same request fails again as long as nobody changes anything.
    pub(super) fn is_permanent(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Copy(error) => !matches!(error, PoolCopyError::Store(_)),
            Self::Rows(_) => false,
        }
    }

    /// The same for a stage that cannot be saved.
    pub(super) fn into_copy_error(self) -> PoolCopyError {
        match self {
            Self::Copy(error) => error,
            Self::Rows(error) => row_error(error),
            Self::Refused(problem) => StoreError::Stopped(problem.message).into(),
        }
    }

    pub(super) fn into_problem(self) -> Problem {
        match self {
            Self::Refused(problem) => *problem,
            Self::Copy(PoolCopyError::Store(error)) => store_failed(&error),
            Self::Copy(error) => problem(codes::POOL_NOT_COPIED, error.to_string(), HELP),
            Self::Rows(error) => to_problem(error),
        }
    }
}

/// The error of a row as one of the copy.
pub(super) fn row_error(error: ostraca_catalog::Error) -> PoolCopyError {
    match error {
        ostraca_catalog::Error::Store(error) => PoolCopyError::Store(error),
        ostraca_catalog::Error::RowConflict(_) => PoolCopyError::Overtaken,
        error => StoreError::Stopped(format!("cannot save the progress: {error}")).into(),
    }
}

impl From<PoolCopyError> for CopyFailure {
    fn from(error: PoolCopyError) -> Self {
        Self::Copy(error)
    }
}

impl From<ostraca_catalog::Error> for CopyFailure {
    fn from(error: ostraca_catalog::Error) -> Self {
        Self::Rows(error)
    }
}

impl From<StoreError> for CopyFailure {
    fn from(error: StoreError) -> Self {
        Self::Copy(error.into())
    }
}
