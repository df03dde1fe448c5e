//! One cheap pass over a component before anything is compiled: what it imports and exports, and how much it creates.
//!
//! A component may nest others and instantiate each of them more than once. So a few bytes can stand for millions of
//! instances, all of which the compiler and every later instantiation would have to process. The counts here are the
//! totals that one instantiation creates. Each nested component is counted once, when its end is read, and every
//! instantiation of it adds that sum. The time of the pass depends only on the size of the file, whatever the counts
//! are.
//!
//! Whatever is instantiated must be nested in the component, so that the pass has seen it. The size of a component or
//! core module that arrives as an import, or as another instance's export, is not known here, so instantiating it is
//! refused.

use wasmparser::{
    ComponentAlias, ComponentExternalKind, ComponentInstance, ComponentOuterAliasKind,
    ComponentType, ComponentTypeRef, Instance, Parser, Payload, TypeRef,
};

use crate::text::sanitized;
use crate::{ComponentLimits, ComponentResource, Error, InstanceLimits};

/// What one instantiation of a component creates, nested components included. Sums saturate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) core_instances: u64,
    pub(crate) component_instances: u64,
    pub(crate) memories: u64,
    pub(crate) tables: u64,
    /// Functions of core modules, imported ones included, counted once for each instance.
    pub(crate) functions: u64,
    pub(crate) types: u64,
    /// Everything else that a component lists: imports, exports, aliases, arguments, canonical functions.
    pub(crate) definitions: u64,
    /// Initial size of all memories in bytes.
    pub(crate) memory: u64,
    /// Initial number of elements in all tables.
    pub(crate) table_elements: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        let sums = [
            (&mut self.core_instances, other.core_instances),
            (&mut self.component_instances, other.component_instances),
            (&mut self.memories, other.memories),
            (&mut self.tables, other.tables),
            (&mut self.functions, other.functions),
            (&mut self.types, other.types),
            (&mut self.definitions, other.definitions),
            (&mut self.memory, other.memory),
            (&mut self.table_elements, other.table_elements),
        ];
        for (sum, count) in sums {
            more(sum, count);
        }
    }

    /// Fails if a count exceeds what the node allows any component, or what the deployment allows an instance.
    pub(crate) fn check(
        &self,
        most: &ComponentLimits,
        limits: &InstanceLimits,
    ) -> Result<(), Error> {
        let elements = limits.table_elements as u64;
        let all = [
            (ComponentResource::CoreInstances, self.core_instances, most.core_instances.into()),
            (
                ComponentResource::ComponentInstances,
                self.component_instances,
                most.component_instances.into(),
            ),
            (ComponentResource::Memories, self.memories, most.memories.into()),
            (ComponentResource::Tables, self.tables, most.tables.into()),
            (ComponentResource::Functions, self.functions, most.functions.into()),
            (ComponentResource::Types, self.types, most.types.into()),
            (ComponentResource::Definitions, self.definitions, most.definitions.into()),
            (ComponentResource::Memory, self.memory, limits.memory),
            (ComponentResource::TableElements, self.table_elements, elements),
        ];
        match all.into_iter().find(|(_, found, limit)| found > limit) {
            None => Ok(()),
            Some((part, found, limit)) => Err(Error::ComponentLimit { part, found, limit }),
        }
    }
}

/// The result of the pass.
#[derive(Debug)]
pub(crate) struct Survey<'a> {
    /// Names of the component's own imports.
    pub(crate) imports: Vec<&'a str>,
    /// Names of the component's own exports.
    pub(crate) exports: Vec<&'a str>,
    pub(crate) counts: Counts,
}

/// Surveys a component. It need not be valid: the compiler refuses an invalid one. Uses about 100 bytes of memory for
/// each of `definitions`.
pub(crate) fn survey(component: &[u8], definitions: u32) -> Result<Survey<'_>, Error> {
    let mut pass = Surveyor { definitions: definitions.into(), ..Surveyor::default() };
    for payload in Parser::new(0).parse_all(component) {
        pass.payload(payload.map_err(invalid)?)?;
    }
    let Surveyor { imports, exports, whole, .. } = pass;
    Ok(Survey { imports, exports, counts: whole })
}

/// Adds to a sum, saturating at the maximum.
fn more(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

fn invalid(error: impl std::fmt::Display) -> Error {
    Error::InvalidComponent(sanitized(error.to_string()))
}

/// The index in [`Surveyor::ended`] of a module's or component's counts; `None` for one that comes from outside.
type CountsIndex = Option<usize>;

/// A component or core module whose end has not been read yet.
#[derive(Default)]
struct Scope {
    module: bool,
    counts: Counts,
    modules: Vec<CountsIndex>,
    components: Vec<CountsIndex>,
}

#[derive(Default)]
struct Surveyor<'a> {
    open: Vec<Scope>,
    /// The counts of each module and component whose end has been read.
    ended: Vec<Counts>,
    /// Number of items listed so far in the whole file; at most `definitions` are allowed.
    listed: u64,
    definitions: u64,
    imports: Vec<&'a str>,
    exports: Vec<&'a str>,
    whole: Counts,
}

impl<'a> Surveyor<'a> {
    fn payload(&mut self, payload: Payload<'a>) -> Result<(), Error> {
        if let Payload::Version { encoding, .. } = payload {
            self.list()?;
            let module = encoding == wasmparser::Encoding::Module;
            self.open.push(Scope { module, ..Scope::default() });
            return Ok(());
        }
        if let Payload::End(_) = payload {
            return self.end();
        }
        let outermost = self.open.len() == 1;
        let Some(open) = self.open.last_mut() else { return Ok(()) };
        let counts = &mut open.counts;
        match payload {
            // Sections of a core module.
            Payload::TypeSection(section) => more(&mut counts.types, section.count().into()),
            Payload::FunctionSection(section) => {
                more(&mut counts.functions, section.count().into())
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    if let TypeRef::Func(_) | TypeRef::FuncExact(_) = import.map_err(invalid)?.ty {
                        more(&mut counts.functions, 1);
                    }
                }
            }
            Payload::TableSection(section) => {
                for table in section {
                    more(&mut counts.tables, 1);
                    let elements = table.map_err(invalid)?.ty.initial;
                    more(&mut counts.table_elements, elements);
                }
            }
            Payload::MemorySection(section) => {
                for memory in section {
                    more(&mut counts.memories, 1);
                    let memory = memory.map_err(invalid)?;
                    let page =
                        1_u64.checked_shl(memory.page_size_log2.unwrap_or(16)).unwrap_or(u64::MAX);
                    more(&mut counts.memory, memory.initial.saturating_mul(page));
                }
            }
            // Sections of a component.
            Payload::CoreTypeSection(section) => more(&mut counts.types, section.count().into()),
            Payload::ComponentTypeSection(section) => {
                for ty in section {
                    let parts = match ty.map_err(invalid)? {
                        ComponentType::Component(parts) => parts.len() as u64,
                        ComponentType::Instance(parts) => parts.len() as u64,
                        _ => 0,
                    };
                    more(&mut counts.types, 1 + parts);
                }
            }
            Payload::ComponentCanonicalSection(section) => {
                more(&mut counts.definitions, section.count().into());
            }
            Payload::ComponentImportSection(section) => {
                for import in section {
                    let import = import.map_err(invalid)?;
                    self.listed += 1;
                    more(&mut counts.definitions, 1);
                    match import.ty {
                        ComponentTypeRef::Module(_) => open.modules.push(None),
                        ComponentTypeRef::Component(_) => open.components.push(None),
                        _ => {}
                    }
                    if outermost {
                        self.imports.push(import.name.name);
                    }
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section {
                    let export = export.map_err(invalid)?;
                    self.listed += 1;
                    more(&mut counts.definitions, 1);
                    // An export also gets a new index, to which later items may refer.
                    match export.kind {
                        ComponentExternalKind::Module => {
                            open.modules.push(find(&open.modules, "core module", export.index)?);
                        }
                        ComponentExternalKind::Component => {
                            open.components.push(find(
                                &open.components,
                                "component",
                                export.index,
                            )?);
                        }
                        _ => {}
                    }
                    if outermost {
                        self.exports.push(export.name.name);
                    }
                }
            }
            Payload::InstanceSection(section) => {
                for instance in section {
                    open.core_instance(&instance.map_err(invalid)?, &self.ended)?;
                }
            }
            Payload::ComponentInstanceSection(section) => {
                for instance in section {
                    open.component_instance(&instance.map_err(invalid)?, &self.ended)?;
                }
            }
            Payload::ComponentAliasSection(section) => {
                for alias in section {
                    self.alias(&alias.map_err(invalid)?)?;
                }
            }
            _ => {}
        }
        self.within()
    }

    fn list(&mut self) -> Result<(), Error> {
        self.listed += 1;
        self.within()
    }

    /// Bounds what the pass itself keeps in memory.
    fn within(&self) -> Result<(), Error> {
        if self.listed <= self.definitions {
            return Ok(());
        }
        Err(Error::ComponentLimit {
            part: ComponentResource::Definitions,
            found: self.listed,
            limit: self.definitions,
        })
    }

    /// Closes the innermost scope. The scope around it refers to it by the next index.
    fn end(&mut self) -> Result<(), Error> {
        let Some(done) = self.open.pop() else { return Ok(()) };
        match self.open.last_mut() {
            None => self.whole = done.counts,
            Some(around) => {
                let known = Some(self.ended.len());
                self.ended.push(done.counts);
                if done.module { &mut around.modules } else { &mut around.components }.push(known);
            }
        }
        Ok(())
    }

    fn alias(&mut self, alias: &ComponentAlias<'a>) -> Result<(), Error> {
        self.list()?;
        let outer = match alias {
            ComponentAlias::Outer { kind, count, index } => Some((kind, *count, *index)),
            _ => None,
        };
        let from = |open: &[Scope], count: u32| {
            open.len()
                .checked_sub(1 + count as usize)
                .ok_or_else(|| no_index("outer component", count))
        };
        let known = match outer {
            Some((ComponentOuterAliasKind::CoreModule, count, index)) => {
                let from = from(&self.open, count)?;
                Some((true, find(&self.open[from].modules, "core module", index)?))
            }
            Some((ComponentOuterAliasKind::Component, count, index)) => {
                let from = from(&self.open, count)?;
                Some((false, find(&self.open[from].components, "component", index)?))
            }
            _ => None,
        };
        let Some(open) = self.open.last_mut() else { return Ok(()) };
        more(&mut open.counts.definitions, 1);
        match (alias, known) {
            (_, Some((true, known))) => open.modules.push(known),
            (_, Some((false, known))) => open.components.push(known),
            (ComponentAlias::InstanceExport { kind: ComponentExternalKind::Module, .. }, _) => {
                open.modules.push(None);
            }
            (ComponentAlias::InstanceExport { kind: ComponentExternalKind::Component, .. }, _) => {
                open.components.push(None);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Scope {
    fn core_instance(&mut self, instance: &Instance<'_>, ended: &[Counts]) -> Result<(), Error> {
        match instance {
            Instance::Instantiate { module_index, args } => {
                let module = find(&self.modules, "core module", *module_index)?;
                let module = module.and_then(|at| ended.get(at));
                self.counts.add(module.ok_or(Error::UnsizedInstantiation { what: "core module" })?);
                let one = Counts {
                    core_instances: 1,
                    definitions: args.len() as u64,
                    ..Counts::default()
                };
                self.counts.add(&one);
            }
            Instance::FromExports(exports) => {
                let definitions = 1 + exports.len() as u64;
                self.counts.add(&Counts { definitions, ..Counts::default() });
            }
        }
        Ok(())
    }

    fn component_instance(
        &mut self,
        instance: &ComponentInstance<'_>,
        ended: &[Counts],
    ) -> Result<(), Error> {
        match instance {
            ComponentInstance::Instantiate { component_index, args } => {
                let component = find(&self.components, "component", *component_index)?;
                let component = component.and_then(|at| ended.get(at));
                self.counts
                    .add(component.ok_or(Error::UnsizedInstantiation { what: "component" })?);
                let one = Counts {
                    component_instances: 1,
                    definitions: args.len() as u64,
                    ..Counts::default()
                };
                self.counts.add(&one);
            }
            ComponentInstance::FromExports(exports) => {
                let definitions = 1 + exports.len() as u64;
                self.counts.add(&Counts { definitions, ..Counts::default() });
            }
        }
        Ok(())
    }
}

fn find(all: &[CountsIndex], what: &str, index: u32) -> Result<CountsIndex, Error> {
    all.get(index as usize).copied().ok_or_else(|| no_index(what, index))
}

fn no_index(what: &str, index: u32) -> Error {
    Error::InvalidComponent(format!("no {what} {index}"))
}

#[cfg(test)]
mod tests;
