//! `ostraca client TYPE`: writes the typed calls of a type in a programming language.

use ostraca_client::MessageKind;
use ostraca_schema::client::{EntityType, Language, Method, typed_client};
use serde_json::json;

use crate::args::{ClientLanguage, Global, OutputFormat, TypedClient};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &TypedClient) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let found =
        connection::with_spinner("contacting the node", client.methods(&args.entity_type)).await?;
    connection::disconnect(client).await;
    let methods: Vec<_> = found
        .methods
        .iter()
        .map(|method| {
            let schema = method.schema.as_ref();
            Method {
                name: &method.name,
                is_command: method.kind() != MessageKind::Query,
                summary: &method.summary,
                arguments: schema.map_or("", |it| &it.arguments),
                result: schema.map_or("", |it| &it.result),
            }
        })
        .collect();
    let entity_type =
        EntityType { name: &found.r#type, revision: found.revision, methods: &methods };
    let language = match args.language {
        ClientLanguage::Ts => Language::TypeScript,
        ClientLanguage::Python => Language::Python,
        ClientLanguage::Rust => Language::Rust,
    };
    let code = typed_client(language, &entity_type);
    match (&args.out, global.output) {
        (Some(path), _) => {
            std::fs::write(path, &code).map_err(|error| Failure::file("write", path, &error))?;
        }
        (None, OutputFormat::Json) => {
            output::json(
                &json!({ "type": found.r#type, "revision": found.revision, "code": code }),
            );
        }
        (None, OutputFormat::Table) => output::text(&code),
    }
    Ok(Exit::Done)
}
