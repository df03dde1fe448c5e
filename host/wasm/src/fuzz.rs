//! What fuzz targets call (`tests/fuzz`): how a component is surveyed, without compiling it.

use crate::{ComponentLimits, Error};

/// What one instantiation of a component makes. Sums stop at the largest number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InstantiationCounts {
    /// Instances of core modules.
    pub core_instances: u64,
    /// Instances of components, itself not counted.
    pub component_instances: u64,
    /// Linear memories.
    pub memories: u64,
    /// Core functions.
    pub functions: u64,
}

/// Surveys a component within the default limits.
///
/// # Errors
/// That it cannot be read, lists too much, or instantiates what has no known size.
pub fn made(component: &[u8]) -> Result<InstantiationCounts, Error> {
    let found = crate::survey::survey(component, ComponentLimits::default().definitions)?.counts;
    Ok(InstantiationCounts {
        core_instances: found.core_instances,
        component_instances: found.component_instances,
        memories: found.memories,
        functions: found.functions,
    })
}
