//! The entry point of the fuzz targets (`tests/fuzz`): surveys a component without compiling it.

use crate::{ComponentLimits, Error};

/// What one instantiation of a component creates. Sums saturate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InstantiationCounts {
    /// Instances of core modules.
    pub core_instances: u64,
    /// Instances of components, not counting the component itself.
    pub component_instances: u64,
    /// Linear memories.
    pub memories: u64,
    /// Functions of core modules.
    pub functions: u64,
}

/// Surveys a component within the default limits.
///
/// # Errors
/// If the component cannot be read, lists too much, or instantiates something of unknown size.
pub fn made(component: &[u8]) -> Result<InstantiationCounts, Error> {
    let found = crate::survey::survey(component, ComponentLimits::default().definitions)?.counts;
    Ok(InstantiationCounts {
        core_instances: found.core_instances,
        component_instances: found.component_instances,
        memories: found.memories,
        functions: found.functions,
    })
}
