//! Looks up the type and the method that an envelope names among the deployed types, or says why they do not exist.

use std::sync::Arc;

use ostraca_codes::codes;
use ostraca_config::user_file::closest_name;
use ostraca_core::message::MessageKind;
use ostraca_core::names;
use ostraca_wire::envelope::{self, TypeInfo, check_namespace};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{Envelope, Problem};

use super::{DeployedType, TypeTable};

/// The type and method that an envelope names, if its sender may use them.
///
/// # Errors
/// A refusal that says what is wrong with the namespace, the type, the method or the sender.
pub fn resolve_method<'a>(
    types: &'a TypeTable,
    principal: &str,
    envelope: &Envelope,
) -> Result<(&'a Arc<DeployedType>, Arc<str>, MessageKind), Problem> {
    check_namespace(envelope, principal)?;
    let entry =
        types.get(envelope.r#type.as_str()).ok_or_else(|| unknown_type(types, &envelope.r#type))?;
    let (method, kind) = envelope::resolve_method(&**entry, principal, envelope)?;
    Ok((entry, method, kind))
}

impl TypeInfo for DeployedType {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn admits(&self, principal: &str) -> bool {
        self.manifest.access.allows(principal)
    }

    fn method(&self, name: &str) -> Option<&(Arc<str>, MessageKind)> {
        self.methods_by_name().get(name)
    }

    fn unknown_method(&self, name: &str) -> Problem {
        let known: Vec<_> = self.methods().iter().map(|(name, _)| &**name).collect();
        let mut problem =
            problem(codes::UNKNOWN_METHOD, format!("`{}` has no method `{name}`", self.name), "");
        problem.help = match closest_name(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? it has: {}", known.join(", ")),
            None => format!("it has: {}", known.join(", ")),
        };
        problem.details.insert("methods".into(), known.join(","));
        problem
    }

    fn max_message(&self) -> u64 {
        self.manifest.limits.message
    }
}

/// The refusal of a message or a request to a type that is not deployed, with the most similar name.
pub fn unknown_type(types: &TypeTable, name: &str) -> Problem {
    // Senders see nothing of other namespaces.
    let namespace = names::namespace(name);
    let known = types.keys().map(|known| &**known);
    let near = closest_name(name, known.filter(|known| names::namespace(known) == namespace));
    let help = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`ostraca deployments` lists the deployed types".into(),
    };
    let mut problem = problem(codes::UNKNOWN_TYPE, format!("no type `{name}` is deployed"), &help);
    if let Some(near) = near {
        problem.details.insert("nearest".into(), near.into());
    }
    problem
}
