//! Fuzzes the check of components before they are compiled. Any bytes are surveyed or refused, and the survey's counts
//! equal those from counting the instances one by one.

#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use ostraca_wasm::fuzz::InstantiationCounts;
use wasm_encoder::{
    Alias, CodeSection, Component, ComponentAliasSection, ComponentInstanceSection,
    ComponentOuterAliasKind, Function, FunctionSection, InstanceSection, MemorySection, MemoryType,
    Module, ModuleArg, ModuleSection, NestedComponentSection, TypeSection,
};

/// Maximum nesting depth of components, and maximum number of sections per component.
const DEPTH: usize = 40;
const LISTED: usize = 12;

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    if first % 2 == 0 {
        if let Err(refused) = ostraca_wasm::fuzz::made(rest) {
            assert!(!refused.to_string().is_empty());
        }
        return;
    }
    let Ok((component, made)) = component(&mut Unstructured::new(rest), &mut Vec::new()) else {
        return;
    };
    let found = ostraca_wasm::fuzz::made(&component.finish()).expect("it is whole");
    assert_eq!(found, made);
});

/// What indices refer to inside a component.
#[derive(Default)]
struct Scope {
    modules: Vec<InstantiationCounts>,
    components: Vec<InstantiationCounts>,
}

fn add(sum: &mut InstantiationCounts, more: InstantiationCounts) {
    sum.core_instances = sum.core_instances.saturating_add(more.core_instances);
    sum.component_instances = sum.component_instances.saturating_add(more.component_instances);
    sum.memories = sum.memories.saturating_add(more.memories);
    sum.functions = sum.functions.saturating_add(more.functions);
}

fn component(input: &mut Unstructured<'_>, around: &mut Vec<Scope>) -> Result<(Component, InstantiationCounts)> {
    let (mut out, mut made) = (Component::new(), InstantiationCounts::default());
    around.push(Scope::default());
    for _ in 0..input.int_in_range(0..=LISTED)? {
        let depth = around.len();
        let scope = &mut around[depth - 1];
        match input.int_in_range(0..=4)? {
            0 => {
                let (module, makes) = module(input)?;
                out.section(&ModuleSection(&module));
                scope.modules.push(makes);
            }
            1 if depth < DEPTH => {
                let (nested, makes) = component(input, around)?;
                out.section(&NestedComponentSection(&nested));
                around[depth - 1].components.push(makes);
            }
            2 if !scope.modules.is_empty() => {
                let which = input.choose_index(scope.modules.len())?;
                let mut section = InstanceSection::new();
                section.instantiate(which as u32, Vec::<(&str, ModuleArg)>::new());
                out.section(&section);
                add(&mut made, scope.modules[which]);
                add(&mut made, InstantiationCounts { core_instances: 1, ..InstantiationCounts::default() });
            }
            3 if !scope.components.is_empty() => {
                let which = input.choose_index(scope.components.len())?;
                let mut section = ComponentInstanceSection::new();
                section.instantiate(which as u32, Vec::<(&str, _, _)>::new());
                out.section(&section);
                add(&mut made, scope.components[which]);
                add(&mut made, InstantiationCounts { component_instances: 1, ..InstantiationCounts::default() });
            }
            _ => {
                let count = input.choose_index(depth)?;
                let from = &around[depth - 1 - count];
                let of_modules = input.ratio(1, 2)?;
                let known = if of_modules { &from.modules } else { &from.components };
                if known.is_empty() {
                    continue;
                }
                let index = input.choose_index(known.len())?;
                let makes = known[index];
                let (kind, names) = if of_modules {
                    (ComponentOuterAliasKind::CoreModule, &mut around[depth - 1].modules)
                } else {
                    (ComponentOuterAliasKind::Component, &mut around[depth - 1].components)
                };
                names.push(makes);
                let mut section = ComponentAliasSection::new();
                section.alias(Alias::Outer { kind, count: count as u32, index: index as u32 });
                out.section(&section);
            }
        }
    }
    around.pop();
    Ok((out, made))
}

fn module(input: &mut Unstructured<'_>) -> Result<(Module, InstantiationCounts)> {
    let functions = input.int_in_range(0..=5_u32)?;
    let memories = input.int_in_range(0..=2_u32)?;
    let (mut types, mut declared, mut code) =
        (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], []);
    for _ in 0..functions {
        declared.function(0);
        let mut body = Function::new([]);
        body.instructions().end();
        code.function(&body);
    }
    let mut memory = MemorySection::new();
    for _ in 0..memories {
        let one = MemoryType {
            minimum: 1,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        };
        memory.memory(one);
    }
    let mut module = Module::new();
    module.section(&types).section(&declared).section(&memory).section(&code);
    let made = InstantiationCounts { memories: memories.into(), functions: functions.into(), ..InstantiationCounts::default() };
    Ok((module, made))
}
