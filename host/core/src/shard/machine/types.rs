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
    /// Records a type's deployment, and returns whether it replaces an older one. A late event about an older
    /// deployment changes nothing: the older code must not run on state that the newer one wrote (R24).
    pub(super) fn on_deployed(
        &mut self,
        context: &Context,
        entity_type: Arc<str>,
        settings: TypeSettings,
    ) -> bool {
        let known = self.0.get(&entity_type).map(|old| old.revision);
        if known.is_some_and(|known| known > settings.revision)
            && !context.has_mutation(Mutation::AcceptOlderDeployment)
        {
            return false;
        }
        let is_newer = known.is_some_and(|known| known < settings.revision);
        self.0.insert(entity_type, settings);
        is_newer
    }

    /// The settings of an entity's type, if it is deployed.
    pub(super) fn of(&self, entity: &Entity) -> Option<&TypeSettings> {
        self.0.get(&entity.entity_type)
    }

    /// The revision of a type, if it is deployed.
    pub(super) fn revision(&self, entity_type: &str) -> Option<u64> {
        self.0.get(entity_type).map(|settings| settings.revision)
    }

    /// The revision that an entity's type runs; 0 if it is not deployed.
    pub(super) fn revision_of(&self, entity: &Entity) -> u64 {
        self.of(entity).map_or(0, |settings| settings.revision)
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
        assert_eq!((types.revision_of(&counter), types.of(&counter)), (0, None));
        let mut deploy = |revision| {
            let settings = TypeSettings { revision, ..TypeSettings::default() };
            let is_newer = types.on_deployed(&context, "counter".into(), settings);
            (is_newer, types.revision_of(&counter))
        };
        assert_eq!(deploy(2), (false, 2), "the first deployment replaces none");
        assert_eq!(deploy(3), (true, 3));
        assert_eq!(deploy(3), (false, 3), "deployed again");
        assert_eq!(deploy(2), (false, 3), "late");
    }
}
