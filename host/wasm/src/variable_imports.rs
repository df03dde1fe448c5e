//! The imports `ostraca:entity/secrets` and `ostraca:entity/settings`.

use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, WasmStr};

use crate::instance_data::InstanceData;
use crate::trap::HostTrap;
use crate::variables::TypeVariables;

/// Maximum length of a name in bytes.
const NAME_LIMIT: usize = 64;

type Cx<'a> = StoreContextMut<'a, InstanceData>;

pub(crate) fn link(linker: &mut Linker<InstanceData>) -> wasmtime::Result<()> {
    let mut secrets = linker.instance("ostraca:entity/secrets@0.1.0")?;
    secrets.func_wrap("get", |mut cx: Cx<'_>, (name,): (WasmStr,)| {
        let name = checked(&name.to_str(&cx)?)?;
        let entity = cx.data_mut();
        if !entity.limits.secrets.contains(&name) {
            return Err(HostTrap::SecretNotGranted(name).into());
        }
        let found = match readable(entity, &name)?.secrets.get(&name) {
            Some(Ok(text)) => Some(text.reveal().to_owned()),
            Some(Err(why)) => return Err(unavailable(&name, why).into()),
            None => None,
        };
        Ok((found,))
    })?;
    let mut settings = linker.instance("ostraca:entity/settings@0.1.0")?;
    settings.func_wrap("get", |mut cx: Cx<'_>, (name,): (WasmStr,)| {
        let name = checked(&name.to_str(&cx)?)?;
        let entity = cx.data_mut();
        if !entity.limits.settings.contains(&name) {
            return Err(HostTrap::SettingNotGranted(name).into());
        }
        Ok((readable(entity, &name)?.settings.get(&name).cloned(),))
    })?;
    Ok(())
}

/// A name that may be granted, and shown in an error.
fn checked(name: &str) -> Result<String, HostTrap> {
    if name.len() > NAME_LIMIT {
        let text = format!(
            "the name of a secret or setting has {} bytes, limit is {NAME_LIMIT}",
            name.len()
        );
        return Err(HostTrap::InvalidHostCall(text));
    }
    Ok(name.to_owned())
}

/// The values of the entity's type, unless this node cannot read them.
fn readable<'a>(entity: &'a mut InstanceData, name: &str) -> Result<&'a TypeVariables, HostTrap> {
    let all = entity.variables.of(&entity.log.identity().entity_type);
    match &all.unreadable {
        Some(why) => Err(unavailable(name, why)),
        None => Ok(all),
    }
}

fn unavailable(name: &str, why: &str) -> HostTrap {
    HostTrap::VariableUnavailable { name: name.into(), why: why.into() }
}
