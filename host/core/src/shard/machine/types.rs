//! The deployed types, as far as this machine knows (R24).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::context::Context;
use crate::ids::Entity;
use crate::shard::TypeSettings;
use crate::shard::settings::Mutation;

#[derive(Clone, Debug, Default)]
pub(super) struct DeployedTypes(BTreeMap<Arc<str>, TypeSettings>);

impl DeployedTypes {
    /// Records a type's deployment, and returns whether it replaces another one. A late event about an older
    /// deployment changes nothing: the older code must not run on state that the newer one wrote (R24).
    pub(super) fn on_deployed(
        &mut self,
        context: &Context,
        entity_type: Arc<str>,
        settings: TypeSettings,
    ) -> bool {
        let known = self.0.get(&entity_type);
        let is_older = known.is_some_and(|known| known.revision > settings.revision);
        if is_older && !context.has_mutation(Mutation::AcceptOlderDeployment) {
            return false;
        }
        let replaces = !is_older && known.is_some_and(|known| *known != settings);
        self.0.insert(entity_type, settings);
        replaces
    }

    /// The settings of an entity's type, if it is deployed.
    pub(super) fn of(&self, entity: &Entity) -> Option<&TypeSettings> {
        self.0.get(&entity.entity_type)
    }

    /// The revision of a type, if it is deployed.
    pub(super) fn revision(&self, entity_type: &str) -> Option<u64> {
        self.0.get(entity_type).map(|settings| settings.revision)
    }

    /// Whether a revision of an entity's type has a stop hook.
    pub(super) fn has_stop_hook(&self, entity: &Entity, revision: u64) -> bool {
        let Some(settings) = self.of(entity) else { return false };
        let earlier = settings.earlier.iter().find(|it| it.revision == revision);
        earlier.map_or(settings.has_stop_hook, |it| it.has_stop_hook)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::Settings;

    #[test]
    fn r24_only_a_higher_revision_replaces_a_deployed_type() {
        let context = Context::new(Settings::default());
        let mut types = DeployedTypes::default();
        let counter = Entity::new("counter", "a");
        assert_eq!((types.revision("counter"), types.of(&counter)), (None, None));
        let mut deploy = |revision| {
            let settings = TypeSettings { revision, ..TypeSettings::default() };
            let replaces = types.on_deployed(&context, "counter".into(), settings);
            (replaces, types.revision("counter").unwrap_or_default())
        };
        assert_eq!(deploy(2), (false, 2), "the first deployment replaces none");
        assert_eq!(deploy(3), (true, 3));
        assert_eq!(deploy(3), (false, 3), "deployed again");
        assert_eq!(deploy(2), (false, 3), "late");
    }
}
