//! How a secret or a setting is printed: without its text.

use std::fmt;

use crate::proto::Variable;

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable")
            .field("kind", &self.kind())
            .field("name", &self.name)
            .field("by", &self.by)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::proto::{Variable, VariablesRequest};

    #[test]
    fn the_text_of_a_secret_is_not_printed() {
        let set =
            Variable { name: "api-key".into(), value: "hidden".into(), ..Variable::default() };
        let request = VariablesRequest { set: Some(set), ..VariablesRequest::default() };
        let shown = format!("{request:?}");
        assert!(shown.contains("api-key") && !shown.contains("hidden"), "{shown}");
    }
}
