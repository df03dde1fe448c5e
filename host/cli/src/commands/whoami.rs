//! `ostraca whoami`: the principal of a profile, and its permissions.

use ostraca_client::WhoAmI;
use serde_json::json;

use crate::args::{Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let known = connection::with_spinner("contacting the node", client.who_am_i()).await?;
    connection::disconnect(client).await;
    match global.output {
        OutputFormat::Json => output::json(&json!({
            "principal": known.principal,
            "roles": known.roles,
            "everywhere": known.everywhere,
            "types": known.types.iter().map(|it| json!({
                "type": it.r#type, "permissions": it.permissions,
            })).collect::<Vec<_>>(),
        })),
        OutputFormat::Table => output::text(&text(&known)),
    }
    Ok(Exit::Done)
}

fn text(known: &WhoAmI) -> String {
    let WhoAmI { principal, roles, everywhere, types } = known;
    let mut text = match roles.is_empty() {
        true => format!("{principal} has no role\n"),
        false => format!("{principal} has the roles: {}\n", roles.join(", ")),
    };
    if !everywhere.is_empty() {
        text += &format!("  on all types, and the cluster: {}\n", everywhere.join(", "));
    }
    for it in types {
        text += &format!("  on {}: {}\n", it.r#type, it.permissions.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use ostraca_client::TypePermissions;

    use super::*;

    #[test]
    fn permissions_are_shown_by_type() {
        let cart = TypePermissions { r#type: "cart".into(), permissions: vec!["query".into()] };
        let mut known = WhoAmI {
            principal: "client/a".into(),
            roles: vec!["r".into(), "s".into()],
            everywhere: vec!["view".into()],
            types: vec![cart],
        };
        assert_eq!(
            text(&known),
            "client/a has the roles: r, s\n  on all types, and the cluster: view\n  on cart: query\n"
        );
        known = WhoAmI { principal: "client/b".into(), ..WhoAmI::default() };
        assert_eq!(text(&known), "client/b has no role\n");
    }
}
