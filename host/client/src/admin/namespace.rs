//! Names types as the cluster does, in requests of a client whose profile has a namespace.

use ostraca_core::names;
use ostraca_wire::proto::admin_request::Request;

/// The name of a type in the cluster. One that names a namespace, or no type, stays as it is.
pub(super) fn name_in(namespace: &str, entity_type: &str) -> String {
    match entity_type {
        "" => String::new(),
        named if named.contains(names::SEPARATOR) => named.to_owned(),
        local => names::qualified(namespace, local).into_owned(),
    }
}

/// Gives the types that a request names their names in the cluster.
pub(super) fn qualify(request: &mut Request, namespace: &str) {
    if namespace.is_empty() {
        return;
    }
    let name = match request {
        Request::Deploy(request) => {
            request.manifest = manifest_in(namespace, &request.manifest);
            return;
        }
        Request::Deployments(request) => &mut request.r#type,
        Request::Methods(request) => &mut request.r#type,
        Request::Entities(request) => &mut request.r#type,
        Request::Inspect(request) => &mut request.r#type,
        Request::DeadLetters(request) => &mut request.r#type,
        Request::Activate(request) => &mut request.r#type,
        Request::Undeploy(request) => &mut request.r#type,
        Request::Export(request) => &mut request.r#type,
        Request::Variables(request) => &mut request.r#type,
        _ => return,
    };
    *name = name_in(namespace, name);
}

/// A manifest with its namespace. One that names a namespace itself stays as it is, as does one that the node cannot
/// read: it says why.
fn manifest_in(namespace: &str, manifest: &str) -> String {
    match manifest.parse::<toml::Table>() {
        Ok(table) if !table.contains_key("namespace") => {
            format!("namespace = \"{namespace}\"\n{manifest}")
        }
        _ => manifest.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ostraca_wire::proto::{DeployRequest, MethodsRequest};

    use super::*;

    #[test]
    fn requests_name_types_of_the_profiles_namespace() {
        let named = |namespace: &str, name: &str| {
            let mut request = Request::Methods(MethodsRequest { r#type: name.into() });
            qualify(&mut request, namespace);
            let Request::Methods(request) = request else { panic!("another request") };
            request.r#type
        };
        assert_eq!(named("acme", "cart"), "acme:cart");
        assert_eq!(named("acme", "other:cart"), "other:cart");
        assert_eq!(named("acme", ""), "");
        assert_eq!(named("", "cart"), "cart");
    }

    #[test]
    fn a_manifest_without_a_namespace_gets_the_profiles() {
        let deployed = |manifest: &str| {
            let manifest = manifest.to_owned();
            let mut request =
                Request::Deploy(DeployRequest { manifest, ..DeployRequest::default() });
            qualify(&mut request, "acme");
            let Request::Deploy(request) = request else { panic!("another request") };
            request.manifest
        };
        assert_eq!(deployed("type = \"a\"\n"), "namespace = \"acme\"\ntype = \"a\"\n");
        for kept in ["namespace = \"b\"\ntype = \"a\"\n", "type = "] {
            assert_eq!(deployed(kept), kept);
        }
    }
}
